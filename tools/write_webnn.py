"""Print webnn.js as pages get it: python tools/write_webnn.py"""

from opweave.serve.client_files import webnn_js

if __name__ == "__main__":
    print(webnn_js(), end="")
