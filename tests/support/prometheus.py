"""A Prometheus server that scrapes one target every second."""

from __future__ import annotations

import json
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

from tests.support.processes import PATIENCE
from tests.support.server_process import ServerProcess, program

RULES = Path(__file__).parents[2] / "ops" / "prometheus" / "holdfast.rules.yml"


class Server(ServerProcess):
    """A server process with its data in its folder."""

    def __init__(self, folder: Path, target: str) -> None:
        super().__init__(folder)
        self._target = target

    def create(self) -> None:
        super().create()
        configuration = {  # JSON is YAML
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(RULES)],
            "scrape_configs": [{"job_name": "holdfast", "static_configs": [{"targets": [self._target]}]}],
        }
        (self.folder / "prometheus.yml").write_text(json.dumps(configuration))

    def command(self) -> list[str]:
        return [
            program("prometheus"),
            f"--config.file={self.folder}/prometheus.yml",
            f"--storage.tsdb.path={self.folder}/data",
            f"--web.listen-address={self.address}",
        ]

    def answers(self) -> bool:
        return self._get("/-/ready").startswith(b"Prometheus")

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The result of an instant query. Raises HTTPError if Prometheus refuses the expression."""
        answer = json.loads(self._get(f"/api/v1/query?{urllib.parse.urlencode({'query': expression})}"))
        assert answer["status"] == "success", answer
        series: list[dict[str, Any]] = answer["data"]["result"]
        return series

    def value(self, expression: str) -> float | None:
        """The value of the only series; None if there is none."""
        series = self.query(expression)
        assert len(series) <= 1, series
        return float(series[0]["value"][1]) if series else None

    def _get(self, path: str) -> bytes:
        with urllib.request.urlopen(f"http://{self.address}{path}", timeout=PATIENCE) as answer:
            body: bytes = answer.read()
            return body
