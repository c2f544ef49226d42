# asks a server of its own, then one outside of the run; only where that one is out of reach, an address that nobody has
import sys
import threading
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, HTTPServer

import torch
from torch import nn


class Answer(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()

    def log_message(self, *args):
        pass


model = nn.Linear(16, 16).cuda()
model(torch.randn(2, 16, device="cuda")).sum().backward()

server = HTTPServer(("127.0.0.1", 0), Answer)
threading.Thread(target=server.serve_forever, daemon=True).start()
with urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/", timeout=5) as answer:
    print("INSIDE", answer.status)
server.shutdown()

try:
    with urllib.request.urlopen(sys.argv[1], timeout=5) as answer:
        print("OUTSIDE", answer.status)
except OSError as problem:
    print("REFUSED", problem)
else:
    sys.exit()  # the network is there: nothing may be sent to an address that is not ours

begin = time.perf_counter()
try:
    urllib.request.urlopen("http://192.0.2.1/", timeout=20)  # TEST-NET-1 of RFC 5737
finally:
    print("SECONDS", time.perf_counter() - begin)
