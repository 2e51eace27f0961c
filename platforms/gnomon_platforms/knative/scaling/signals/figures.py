"""Figures of Revisions on Prometheus pages: `FIGURE{k8s_namespace_name="users",kn_revision_name="f-00001",…} 3`.

Who wrote a page is not asked: what cannot be read is left out, and labels are bounded, because a page that opens braces and
closes none would be looked through once for each of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from gnomon_core.functions import FunctionKey

_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


def lines_of(*figures: str) -> re.Pattern[str]:
    """The lines of these figures, for `read`."""
    return re.compile(rf"^({'|'.join(figures)})\{{([^}}\n]{{1,1000}})\}} ([0-9.eE+-]{{1,50}})(?!\S)", re.MULTILINE)


def labels_of(key: FunctionKey) -> str:
    """The labels that name a Revision."""
    return f'k8s_namespace_name="{key.namespace}",kn_revision_name="{key.name}"'


def read(lines: re.Pattern[str], page: str) -> Iterator[tuple[str, FunctionKey, Mapping[str, str], float]]:
    """By line that names a Revision: the figure, the Revision, all labels and the number."""
    for figure, labels_text, number in lines.findall(page):
        labels = dict(_LABEL.findall(labels_text))
        name, namespace = labels.get("kn_revision_name"), labels.get("k8s_namespace_name")
        try:
            value = float(number)
        except ValueError:
            continue
        if name and namespace:
            yield figure, FunctionKey(name, namespace), labels, value
