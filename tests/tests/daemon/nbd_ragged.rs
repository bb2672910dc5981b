//! libnbd as a client that never asks for block sizes: every offset and length works.

use std::fs;

use millrace_tests::serving::{backends, four_files, stripe, succeed, uri};
use millrace_tests::{Daemon, nbdsh, tempdir};

/// Compares the export with an array of bytes: random ranges, written, zeroed and read, several in
/// flight where they do not overlap.
const SCRIPT: &str = r#"
import random
h.set_request_block_size(False)
h.set_strict_mode(0)
h.connect_uri("URI")
size = h.get_size()
model = bytearray(size)
rng = random.Random(12)
for n in range(400):
    length = 1 + rng.randrange([20, 700, 9000, 200000][n % 4])
    offset = size - length if n % 9 == 0 else rng.randrange(size - length)
    flags = nbd.CMD_FLAG_FUA if n % 3 == 0 else 0
    if n % 4 == 3:
        h.zero(length, offset, flags | (nbd.CMD_FLAG_NO_HOLE if n % 8 == 3 else 0))
        model[offset:offset + length] = bytes(length)
    else:
        data = rng.randbytes(length)
        h.pwrite(data, offset, flags)
        model[offset:offset + length] = data
    assert h.pread(length, offset) == model[offset:offset + length], n
# Neighbours within a block, all in flight at once.
base, cookies, buffers = 123457, [], []
for n in range(64):
    data = bytes([n + 1]) * 100
    model[base + n * 100:base + (n + 1) * 100] = data
    buffer = nbd.Buffer.from_bytearray(bytearray(data))
    buffers.append(buffer)
    cookies.append(h.aio_pwrite(buffer, base + n * 100))
while cookies:
    h.poll(-1)
    cookies = [c for c in cookies if not h.aio_command_completed(c)]
h.flush()
whole = b"".join(h.pread(1 << 20, at) for at in range(0, size, 1 << 20))
assert whole == bytes(model)
try:
    h.pread(2, size - 1)
    assert False, "beyond the end"
except nbd.Error:
    pass
h.shutdown()
"#;

#[test]
fn libnbd_without_block_sizes_sees_an_array_of_bytes() {
    if nbdsh().is_none() {
        return;
    }
    for backend in backends() {
        let dir = tempdir();
        let config = stripe(backend, &four_files(dir.path(), 2, ""));
        let daemon = Daemon::start_in(dir, &config, &["s"], &[]);
        let script = daemon.dir().join("ragged.py");
        fs::write(&script, SCRIPT.replace("URI", &uri(&daemon, "v"))).unwrap();
        let run = format!("exec(open({:?}).read())", script.display().to_string());
        succeed(nbdsh().unwrap().args(["-c", &run]));
    }
}
