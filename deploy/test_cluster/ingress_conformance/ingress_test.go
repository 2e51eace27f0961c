// Runs Knative's conformance tests for ingress classes.
package conformance

import (
	"testing"

	"knative.dev/networking/test/conformance/ingress"
)

func TestIngressConformance(t *testing.T) {
	ingress.RunConformance(t)
}
