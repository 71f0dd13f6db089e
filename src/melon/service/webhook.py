"""Webhooks: alarms are posted to configured addresses, signed, without redirects, and to no private network.

Signatures follow the specification of Standard Webhooks: `webhook-signature` is `v1,` and the HMAC-SHA256 of
`webhook-id.webhook-timestamp.body` by the secret, in base64.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.client
import ipaddress
import json
import logging
import secrets
import socket
import ssl
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from melon.errors import DataError, SettingsError
from melon.service.config import ServeSettings

_LOG = logging.getLogger("melon.service")
_TIMEOUT_S = 5.0
#: Seconds before a message that did not arrive is sent again, one after another.
_PAUSES = (0.0, 1.0, 4.0)
#: A secret is at least this many bytes.
_LEAST_SECRET = 24


class Webhooks:
    """Sends messages to the addresses of the settings; reads their secret when it is made."""

    def __init__(self, settings: ServeSettings, pauses: tuple[float, ...] = _PAUSES) -> None:
        self._addresses, self._private, self._pauses = settings.webhooks, settings.webhook_private, pauses
        self._secret = b""
        if settings.webhook_secret is not None:
            try:
                self._secret = settings.webhook_secret.read_bytes().strip()
            except OSError as problem:
                raise SettingsError(f"the secret of webhooks cannot be read: {problem}.") from None
        if self._addresses and len(self._secret) < _LEAST_SECRET:
            raise SettingsError(
                f"{settings.webhook_secret} has less than {_LEAST_SECRET} bytes; a longer secret is needed."
            )

    def send(self, message: Mapping[str, Any]) -> None:
        """Post a message to every address; one that does not take it is tried again a few times, then left out."""
        name, body = f"msg_{secrets.token_hex(12)}", json.dumps({**message, "time": time.time()}).encode()
        for address in self._addresses:
            problem = ""
            for pause in self._pauses:
                time.sleep(pause)
                try:
                    self._post(address, name, body)
                    break
                except (DataError, OSError, http.client.HTTPException) as error:
                    problem = str(error)
            else:
                _LOG.warning("webhook %s did not take an alarm: %s", urlsplit(address).hostname, problem)

    def _post(self, address: str, name: str, body: bytes) -> None:
        parts, now = urlsplit(address), str(int(time.time()))
        host, secure = parts.hostname or "", parts.scheme == "https"
        port = parts.port or (443 if secure else 80)
        # The address that was looked at is the one that is connected to: a name may mean another one a moment later.
        connection = http.client.HTTPConnection(host, port, timeout=_TIMEOUT_S)
        plain = socket.create_connection((self._checked(host, port), port), _TIMEOUT_S)
        try:
            connection.sock = ssl.create_default_context().wrap_socket(plain, server_hostname=host) if secure else plain
            signed = base64.b64encode(
                hmac.digest(self._secret, b".".join([name.encode(), now.encode(), body]), hashlib.sha256)
            )
            headers = {
                "Content-Type": "application/json", "webhook-id": name, "webhook-timestamp": now,
                "webhook-signature": f"v1,{signed.decode()}",
            }  # fmt: skip
            connection.request("POST", (parts.path or "/") + (f"?{parts.query}" if parts.query else ""), body, headers)
            status = connection.getresponse().status
        finally:
            connection.close()
            plain.close()
        if not 200 <= status < 300:  # a redirect is not followed: it may lead anywhere
            raise DataError(f"it answered {status}")

    def _checked(self, host: str, port: int) -> str:
        """An address of a host, if all of them may be reached."""
        found = {str(one[4][0]) for one in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)}
        inner = sorted(one for one in found if not ipaddress.ip_address(one.partition("%")[0]).is_global)
        if inner and not self._private:
            raise DataError(f"{inner[0]} is not a public address; set webhook_private to allow it")
        return sorted(found)[0]
