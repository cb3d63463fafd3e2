# Requests all PATHs from 127.0.0.1 at once, over one HTTP/3 connection, and prints the response headers in the format
# of gtlsclient.
#
#   python3 t/lib/http3.py PORT all|first|cancel METHOD PATH…
#
# Closes the connection after all responses, or after the first. With `cancel`, sends STOP_SENDING for all requests once
# nginx has had time to queue them, prints "cancelled", and stays connected until SIGTERM.
import asyncio
import contextlib
import signal
import ssl
import sys

from aioquic.asyncio.client import connect
from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.h3.connection import H3_ALPN, ErrorCode, H3Connection
from aioquic.h3.events import DataReceived, HeadersReceived
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.events import ConnectionTerminated, ProtocolNegotiated

port, mode, method, paths = int(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4:]


class Client(QuicConnectionProtocol):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.http = None
        self.open = set()
        self.ended = asyncio.Event()

    def quic_event_received(self, event):
        if isinstance(event, ProtocolNegotiated):
            self.http = H3Connection(self._quic)
        if isinstance(event, ConnectionTerminated):
            self.ended.set()
        for answer in self.http.handle_event(event) if self.http else []:
            if isinstance(answer, HeadersReceived):
                for name, value in answer.headers:
                    print(f"http: stream {answer.stream_id:#x} [{name.decode()}: {value.decode()}]")
            if isinstance(answer, (HeadersReceived, DataReceived)) and answer.stream_ended:
                self.open.discard(answer.stream_id)
                if mode == "first" or (mode == "all" and not self.open):
                    self.ended.set()

    def ask(self, path):
        stream = self._quic.get_next_available_stream_id()
        target = [(b":scheme", b"https"), (b":authority", b"localhost"), (b":path", path.encode())]
        self.http.send_headers(stream, [(b":method", method.encode()), *target], end_stream=True)
        self.open.add(stream)

    def cancel(self):
        for stream in self.open:
            with contextlib.suppress(ValueError):  # the stream has ended meanwhile
                self._quic.stop_stream(stream, ErrorCode.H3_REQUEST_CANCELLED)
        self.transmit()


async def main():
    configuration = QuicConfiguration(is_client=True, alpn_protocols=H3_ALPN, verify_mode=ssl.CERT_NONE)
    async with connect("127.0.0.1", port, configuration=configuration, create_protocol=Client) as client:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, client.ended.set)
        for path in paths:
            client.ask(path)
        client.transmit()
        if mode == "cancel":
            await asyncio.sleep(0.5)
            client.cancel()
            print("cancelled", flush=True)
        await client.ended.wait()


asyncio.run(main())
