-- POSTs the file BODY_FILE with the content type CONTENT_TYPE, and prints what wrk found as one line of JSON.

local file = assert(io.open(os.getenv("BODY_FILE"), "rb"))
wrk.method = "POST"
wrk.body = file:read("*a")
wrk.headers["Content-Type"] = os.getenv("CONTENT_TYPE")
file:close()

function done(summary, latency, requests)
  local errors = summary.errors
  local failed = errors.connect + errors.read + errors.write + errors.status + errors.timeout
  io.write(string.format(
    '\n{"requests": %d, "duration_us": %d, "failed": %d, "p50_us": %d, "p99_us": %d}\n',
    summary.requests, summary.duration, failed, latency:percentile(50), latency:percentile(99)))
end
