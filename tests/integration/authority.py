"""Certificates for tests: an authority in a folder, and what it issues."""

import base64
import pathlib
import subprocess


class AuthorityError(Exception):
    pass


class Authority:
    """A certificate authority in a folder, by the openssl program. Keys are P-256: quick to make."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.certificate = self.folder / "ca.crt"
        self._openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
                      "-keyout", self.folder / "ca.key", "-out", self.certificate, "-days", "30",
                      "-subj", "/CN=rubato-test-ca")

    @classmethod
    def of(cls, folder):
        """The authority that was made in that folder before."""
        made = cls.__new__(cls)
        made.folder = pathlib.Path(folder)
        made.certificate = made.folder / "ca.crt"
        return made

    def issue(self, name, user, groups=(), addresses=(), days=30):
        """(certificate, key) for a client, or for a server when addresses are given (IP:…, DNS:…). Fewer days
        than none: it has expired."""
        certificate, key = self.folder / f"{name}.crt", self.folder / f"{name}.key"
        request, extensions = self.folder / f"{name}.csr", self.folder / f"{name}.ext"
        subject = "".join(f"/O={group}" for group in groups) + f"/CN={user}"
        usage = "serverAuth,clientAuth" if addresses else "clientAuth"
        names = f"subjectAltName={','.join(addresses)}\n" if addresses else ""
        extensions.write_text(f"extendedKeyUsage={usage}\n{names}")
        self._openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
                      "-keyout", key, "-out", request, "-subj", subject)
        self._openssl("x509", "-req", "-in", request, "-CA", self.certificate,
                      "-CAkey", self.folder / "ca.key", "-CAcreateserial", "-days", days,
                      "-extfile", extensions, "-out", certificate)
        return certificate, key

    def manifest(self, name, namespace):
        """The authority as a Secret of type kubernetes.io/tls."""
        encoded = {key: base64.b64encode((self.folder / file).read_bytes()).decode()
                   for key, file in (("tls.crt", "ca.crt"), ("tls.key", "ca.key"))}
        return {"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls",
                "metadata": {"name": name, "namespace": namespace}, "data": encoded}

    def key_pair(self, name):
        """(private, public) for service account tokens."""
        private, public = self.folder / f"{name}.key", self.folder / f"{name}.pub"
        self._openssl("ecparam", "-genkey", "-name", "prime256v1", "-noout", "-out", private)
        self._openssl("ec", "-in", private, "-pubout", "-out", public)
        return private, public

    @staticmethod
    def _openssl(*words):
        done = subprocess.run(["openssl", *map(str, words)], capture_output=True, text=True)
        if done.returncode != 0:
            raise AuthorityError(f"openssl {words[0]}: {done.stderr.strip()}")
