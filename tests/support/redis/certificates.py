"""Certificates for tests of TLS, made with openssl: an authority, a server, a client, and another authority."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from tests.support.server_process import missing


class Certificates:
    """Paths of the files in a folder. All certificates are signed by `ca`, and none by `other_ca`."""

    def __init__(self, folder: Path) -> None:
        if shutil.which("openssl") is None:
            missing("no openssl command on this machine to make certificates with")
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.ca, self._ca_key = self._authority("ca")
        self.other_ca, _ = self._authority("other-ca")
        self.server, self.server_key = self._signed("server", "subjectAltName=IP:127.0.0.1,DNS:localhost")
        self.elsewhere, self.elsewhere_key = self._signed("elsewhere", "subjectAltName=DNS:elsewhere.example")
        self.client, self.client_key = self._signed("client", "extendedKeyUsage=clientAuth")

    def _authority(self, name: str) -> tuple[Path, Path]:
        certificate, key = self._folder / f"{name}.pem", self._folder / f"{name}.key"
        self._openssl("req", "-x509", *_NEW_KEY, "-days", "2", "-subj", f"/CN=holdfast test {name}",
                      "-keyout", key, "-out", certificate)  # fmt: skip
        return certificate, key

    def _signed(self, name: str, extension: str) -> tuple[Path, Path]:
        certificate, key = self._folder / f"{name}.pem", self._folder / f"{name}.key"
        request, extensions = self._folder / f"{name}.csr", self._folder / f"{name}.ext"
        extensions.write_text(extension + "\n")
        self._openssl("req", *_NEW_KEY, "-subj", f"/CN=holdfast test {name}", "-keyout", key, "-out", request)
        self._openssl("x509", "-req", "-in", request, "-CA", self.ca, "-CAkey", self._ca_key, "-CAcreateserial",
                      "-days", "2", "-extfile", extensions, "-out", certificate)  # fmt: skip
        return certificate, key

    def _openssl(self, *arguments: str | Path) -> None:
        subprocess.run(["openssl", *arguments], check=True, capture_output=True, timeout=60)


_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
