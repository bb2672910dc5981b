//! The NBD server as real clients see it: nbdinfo, nbdcopy, qemu-img, qemu-io, and libnbd's shell.
//!
//! Every test runs on each back end. Clients' output is compared as JSON where they offer it.

use std::fs;
use std::path::Path;
use std::process::Command;

use millrace_tests::raw_nbd::RawNbd;
use millrace_tests::serving::{backends, four_files, pattern, stripe, succeed, uri};
use millrace_tests::{Daemon, nbdsh, require_clients, run, tempdir};
use serde_json::{Value, json};

const MIB: u64 = 1 << 20;

/// A second export of the same volume on the same socket.
const READ_ONLY: &str = "[[export]]\nvolume = \"v\"\nname = \"v-ro\"\nread-only = true\n\
                         description = \"look, but do not touch\"\nnbd = \"unix:s\"\n";

/// A stripe of four file drives in the daemon's own directory.
fn serve_files(backend: &str, mib: u64, more: &str) -> Daemon {
    let dir = tempdir();
    let config = stripe(backend, &four_files(dir.path(), mib / 4, "")) + more;
    Daemon::start_in(dir, &config, &["s"], &[])
}

/// A stripe of four ram drives.
fn serve_ram(backend: &str, mib: u64, more: &str) -> Daemon {
    let spec = format!("ram:size={}m", mib / 4);
    Daemon::start(&(stripe(backend, &[&spec; 4]) + more), &["s"])
}

fn from_json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// A tool of libnbd, run to its end.
fn tool(name: &str, args: &[&str]) -> String {
    succeed(Command::new(name).args(args))
}

/// Three quarters patterned data, with a hole of a quarter before the last.
fn write_image(path: &Path, bytes: u64) {
    let mut image = pattern(bytes as usize, 64);
    let quarter = image.len() / 4;
    image[2 * quarter..3 * quarter].fill(0);
    fs::write(path, image).unwrap();
}

fn same(a: &Path, b: &Path) {
    // Not assert_eq!, which would print both.
    assert!(fs::read(a).unwrap() == fs::read(b).unwrap(), "{a:?} and {b:?} differ");
}

#[test]
fn nbdinfo_shows_size_flags_block_sizes_and_contexts() {
    require_clients!("nbdinfo");
    for backend in backends() {
        let daemon = serve_files(backend, 32, READ_ONLY);
        let info = from_json(&tool("nbdinfo", &["--json", &uri(&daemon, "v")]));
        assert_eq!(info["protocol"], "newstyle-fixed");
        assert_eq!(info["structured"], true);
        let export = &info["exports"][0];
        assert_eq!(export["export-name"], "v");
        assert_eq!(export["export-size"], 32 * MIB);
        assert_eq!(export["contexts"], json!(["base:allocation"]));
        assert_eq!(export["block_size_maximum"], 32 * MIB);
        let [minimum, preferred] = ["block_size_minimum", "block_size_preferred"]
            .map(|key| export[key].as_u64().unwrap_or_else(|| panic!("no {key} in {export}")));
        assert!(minimum.is_power_of_two() && (1..=4096).contains(&minimum), "{minimum}");
        assert!(preferred.is_power_of_two() && preferred >= minimum.max(512), "{preferred}");
        for can in ["cache", "df", "fast_zero", "flush", "fua", "multi_conn", "trim", "zero"] {
            assert_eq!(export[format!("can_{can}")], true, "{can}");
        }
        assert_eq!(
            (&export["is_read_only"], &export["is_rotational"]),
            (&json!(false), &json!(false))
        );
        let read_only = from_json(&tool("nbdinfo", &["--json", &uri(&daemon, "v-ro")]));
        let export = &read_only["exports"][0];
        assert_eq!(export["is_read_only"], true);
        assert_eq!((&export["can_trim"], &export["can_zero"]), (&json!(false), &json!(false)));
        let plain = tool("nbdinfo", &["--size", &uri(&daemon, "")]);
        assert_eq!(plain.trim(), (32 * MIB).to_string(), "the default export is the first");
    }
}

#[test]
fn nbdinfo_lists_two_exports_of_one_socket() {
    require_clients!("nbdinfo");
    for backend in backends() {
        let daemon = serve_ram(backend, 8, READ_ONLY);
        let list = from_json(&tool("nbdinfo", &["--list", "--json", &uri(&daemon, "")]));
        let exports = list["exports"].as_array().unwrap();
        let names: Vec<&Value> = exports.iter().map(|export| &export["export-name"]).collect();
        assert_eq!(names, [&json!("v"), &json!("v-ro")]);
        assert_eq!(exports[1]["description"], "look, but do not touch");
        let unknown = run(Command::new("nbdinfo").arg(uri(&daemon, "nobody")));
        assert!(!unknown.status.success(), "an export that is not there is refused");
    }
}

/// The runs of data and of holes as (offset, length, is data), neighbours merged.
fn runs(map: &Value, offset: &str, is_data: impl Fn(&Value) -> bool) -> Vec<(u64, u64, bool)> {
    let mut merged: Vec<(u64, u64, bool)> = Vec::new();
    for entry in map.as_array().unwrap() {
        let number = |key: &str| entry[key].as_u64().unwrap();
        let next = (number(offset), number("length"), is_data(entry));
        match merged.last_mut() {
            Some(last) if last.2 == next.2 => last.1 += next.1,
            _ => merged.push(next),
        }
    }
    merged
}

#[test]
fn maps_show_data_where_it_was_written_and_holes_elsewhere() {
    require_clients!("nbdinfo", "qemu-img");
    for backend in backends() {
        // A drive in memory keeps pages of 64 KiB, a file blocks of 4 KiB.
        let served =
            [(serve_files(backend, 64, ""), 4 << 10), (serve_ram(backend, 64, ""), 64 << 10)];
        for (daemon, grain) in served {
            let mut raw = RawNbd::connect(&daemon.dir().join("s"), "v").unwrap();
            // Within one chunk, over two drives, and up to the end.
            let written = [(MIB + grain, grain), (6 * MIB - grain, 2 * grain), (63 * MIB, MIB)];
            let mut expected = Vec::new();
            let mut at = 0;
            for (offset, length) in written {
                raw.write(offset, &pattern(length as usize, offset)).unwrap();
                expected.extend([(at, offset - at, false), (offset, length, true)]);
                at = offset + length;
            }
            raw.flush().unwrap();
            let map = from_json(&tool("nbdinfo", &["--map", "--json", &uri(&daemon, "v")]));
            // Type 0 is allocated data, 3 a hole that reads as zeroes.
            assert_eq!(runs(&map, "offset", |entry| entry["type"] == 0), expected);
            assert!(map.as_array().unwrap().iter().all(|e| e["type"] == 0 || e["type"] == 3));
            let map = tool("qemu-img", &["map", "--output=json", &uri(&daemon, "v")]);
            let map = from_json(&map);
            assert_eq!(runs(&map, "start", |entry| entry["data"] == true), expected);
            assert!(map.as_array().unwrap().iter().all(|e| e["zero"] != e["data"]));
        }
    }
}

#[test]
fn qemu_img_sees_the_size_and_a_raw_image() {
    require_clients!("qemu-img");
    for backend in backends() {
        let daemon = serve_files(backend, 32, "");
        let info = from_json(&tool("qemu-img", &["info", "--output=json", &uri(&daemon, "v")]));
        assert_eq!(info["virtual-size"], 32 * MIB);
        assert_eq!(info["format"], "raw");
    }
}

#[test]
fn qemu_img_converts_an_image_in_and_out_unchanged() {
    require_clients!("qemu-img");
    for backend in backends() {
        let daemon = serve_files(backend, 64, "");
        let at = |name: &str| daemon.dir().join(name);
        let path = |name: &str| at(name).to_str().unwrap().to_owned();
        let uri = uri(&daemon, "v");
        let convert = |args: &[&str]| tool("qemu-img", &[&["convert"], args].concat());
        write_image(&at("in.raw"), 64 * MIB);
        convert(&["-n", "-f", "raw", "-O", "raw", &path("in.raw"), &uri]);
        convert(&["-f", "raw", "-O", "raw", &uri, &path("out.raw")]);
        same(&at("in.raw"), &at("out.raw"));
        convert(&["-f", "raw", "-O", "qcow2", &uri, &path("out.qcow2")]);
        tool(
            "qemu-img",
            &["compare", "-f", "raw", "-F", "qcow2", &path("in.raw"), &path("out.qcow2")],
        );

        // The image has other contents than before, so that stale data would show.
        let mut image = pattern(64 * MIB as usize, 65);
        image[..MIB as usize].fill(0);
        fs::write(at("in.raw"), image).unwrap();
        convert(&["-f", "raw", "-O", "qcow2", &path("in.raw"), &path("in.qcow2")]);
        convert(&["-n", "-f", "qcow2", "-O", "raw", &path("in.qcow2"), &uri]);
        tool("qemu-img", &["compare", "-f", "raw", "-F", "raw", &path("in.raw"), &uri]);
        convert(&["-f", "raw", "-O", "raw", &uri, &path("out.raw")]);
        same(&at("in.raw"), &at("out.raw"));
    }
}

/// The URI of the export on the TCP port that the daemon was given.
fn tcp_uri(daemon: &Daemon) -> String {
    let printed = daemon.stdout();
    let uri = printed.split_whitespace().find(|word| word.starts_with("nbd://127.0.0.1:"));
    uri.unwrap_or_else(|| panic!("no TCP export in {printed}")).to_owned()
}

#[test]
fn nbdcopy_copies_both_ways_over_unix_and_tcp() {
    require_clients!("nbdcopy");
    for backend in backends() {
        let listener = "[[export]]\nvolume = \"v\"\nnbd = \"tcp:127.0.0.1:0\"\n";
        let daemon = serve_files(backend, 64, listener);
        for (uri, seed) in [(uri(&daemon, "v"), 1), (tcp_uri(&daemon), 2)] {
            let at = |name: &str| daemon.dir().join(name);
            let [image, copy] = ["in.raw", "out.raw"].map(at);
            fs::write(&image, pattern(64 * MIB as usize, seed)).unwrap();
            let connections = ["--connections=4", "--flush"];
            succeed(Command::new("nbdcopy").args(connections).arg(&image).arg(&uri));
            succeed(Command::new("nbdcopy").args(connections).arg(&uri).arg(&copy));
            same(&image, &copy);
            fs::remove_file(&copy).unwrap();
        }
    }
}

/// Space that the drive files take, in bytes.
fn allocated_bytes(daemon: &Daemon) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let drives = (0..4).map(|n| fs::metadata(daemon.dir().join(format!("d{n}"))).unwrap());
    drives.map(|meta| meta.blocks() * 512).sum()
}

#[test]
fn qemu_io_commands_do_what_they_say() {
    require_clients!("qemu-io");
    for backend in backends() {
        let daemon = serve_files(backend, 64, "");
        let qemu_io = |commands: &[&str]| {
            let mut command = Command::new("qemu-io");
            command.args(["-f", "raw", "-d", "unmap"]);
            for one in commands {
                command.args(["-c", one]);
            }
            let said = succeed(command.arg(uri(&daemon, "v")));
            let failed = ["failed", "Pattern verification"].iter().any(|word| said.contains(word));
            assert!(!failed, "{commands:?}: {said}");
        };
        qemu_io(&["write -f -P 1 0 1m", "write -P 2 1m 3m", "write -P 3 4608 512", "flush"]);
        qemu_io(&["read -P 1 0 4608", "read -P 3 4608 512", "read -P 1 5120 64k"]);
        let before = allocated_bytes(&daemon);
        qemu_io(&["write -z -f 1m 1m", "flush", "read -P 0 1m 1m", "read -P 2 2m 2m"]);
        assert!(allocated_bytes(&daemon) >= before, "zeroes without unmap stay allocated");
        qemu_io(&["write -zu 2m 1m", "read -P 0 2m 1m", "read -P 2 3m 1m", "flush"]);
        assert!(allocated_bytes(&daemon) <= before - (MIB - 64 * 1024), "zeroes with unmap do not");
        qemu_io(&["discard 3m 1m", "flush", "read 3m 1m"]);
        assert!(
            allocated_bytes(&daemon) <= before - 2 * (MIB - 64 * 1024),
            "nor do discarded ones"
        );
        qemu_io(&["aio_write -P 4 8m 2m", "aio_write -P 5 16m 2m", "aio_flush"]);
        qemu_io(&["read -P 4 8m 2m", "read -P 5 16m 2m", "read -P 1 0 4608"]);
        let beyond = run(Command::new("qemu-io")
            .args(["-f", "raw", "-c", "write 64m 4k"])
            .arg(uri(&daemon, "v")));
        assert!(!beyond.status.success(), "a write beyond the end fails");
    }
}

const STRUCTURED: &str = r#"
size = h.get_size()
h.pwrite(b"\x11" * 65536, 65536)
h.pwrite(b"\x22" * 512, 1048576, nbd.CMD_FLAG_FUA)
h.flush()

# Chunks of a structured read cover the range once and carry the right bytes.
def structured(offset, count, flags=0):
    data, seen = bytearray(b"\xee" * count), []
    def chunk(buf, at, status, err):
        if status == nbd.READ_DATA:
            data[at - offset:at - offset + len(buf)] = buf
            seen.append((at, len(buf)))
        else:
            assert status == nbd.READ_HOLE, status
    whole = h.pread_structured(count, offset, chunk, flags)
    return bytes(whole), bytes(data), seen
expected = bytes(65536) + b"\x11" * 65536 + bytes(65536)
whole, data, seen = structured(0, 3 * 65536)
assert whole == expected
assert all(data[at:at + n] == expected[at:at + n] for at, n in seen), seen
whole, data, seen = structured(0, 3 * 65536, nbd.CMD_FLAG_DF)
assert whole == data == expected and seen == [(0, 3 * 65536)], seen

# Extents.
def extents(count, offset, flags=0):
    found = []
    def extent(context, at, entries, err):
        assert context == "base:allocation" and at == offset
        found.extend(zip(entries[::2], entries[1::2]))
    h.block_status(count, offset, extent, flags)
    return found
hole = nbd.STATE_HOLE | nbd.STATE_ZERO
assert extents(3 * 65536, 0)[:3] == [(65536, hole), (65536, 0), (65536, hole)], extents(3 * 65536, 0)
assert extents(3 * 65536, 65536, nbd.CMD_FLAG_REQ_ONE) == [(65536, 0)]

# Zeroes: fast, kept allocated, and both at once, which may be refused but must not half happen.
h.zero(65536, 65536, nbd.CMD_FLAG_FAST_ZERO)
assert h.pread(65536, 65536) == bytes(65536)
h.pwrite(b"\x33" * 65536, 131072)
h.zero(65536, 131072, nbd.CMD_FLAG_NO_HOLE | nbd.CMD_FLAG_FUA)
assert h.pread(65536, 131072) == bytes(65536)
h.pwrite(b"\x44" * 4096, 262144)
try:
    h.zero(4096, 262144, nbd.CMD_FLAG_NO_HOLE | nbd.CMD_FLAG_FAST_ZERO)
    assert h.pread(4096, 262144) == bytes(4096)
except nbd.Error as error:
    assert error.errno == "ENOTSUP" or error.errno == "EOPNOTSUPP", error.errno
    assert h.pread(4096, 262144) == b"\x44" * 4096

# The rest of the commands.
h.cache(65536, 0)
h.trim(65536, 262144, nbd.CMD_FLAG_FUA)
assert h.pread(512, 1048576) == b"\x22" * 512
"#;

const ERRORS: &str = r#"
def error(call, *args):
    try:
        call(*args)
    except nbd.Error as error:
        return error.errno
    return None
# The client would refuse these itself.
h.set_strict_mode(0)
size = h.get_size()
assert error(h.pread, 512, size) == "EINVAL"
assert error(h.pread, 4096, size - 512) == "EINVAL"
assert error(h.pread, 512, 2**64 - 512) == "EINVAL"
assert error(h.pwrite, bytes(512), size) == "ENOSPC"
assert error(h.zero, 4096, size - 512) == "ENOSPC"
assert error(h.trim, 512, size) == "EINVAL"
assert error(h.pread, 512, 1) == "EINVAL", "below the smallest block"
assert error(h.pread, 33 << 20, 0) == "EINVAL"
assert error(h.pread, 512, 0) is None, "the connection lives on"
"#;

const REFUSES_WRITES: &str = r#"
h.set_strict_mode(0)
for call in [lambda: h.pwrite(bytes(4096), 0), lambda: h.zero(4096, 0), lambda: h.trim(4096, 0)]:
    try:
        call()
        assert False, "a write to a read-only export"
    except nbd.Error as error:
        assert error.errno == "EPERM", error.errno
assert h.is_read_only()
h.flush()
assert h.pread(512, 1048576) == b"\x22" * 512
"#;

#[test]
fn libnbd_reads_chunks_and_extents_and_gets_the_right_errors() {
    if nbdsh().is_none() {
        return;
    }
    for backend in backends() {
        for daemon in [serve_files(backend, 64, READ_ONLY), serve_ram(backend, 64, READ_ONLY)] {
            let [uri, read_only] = ["v", "v-ro"].map(|name| uri(&daemon, name));
            for (uri, script) in [(&uri, STRUCTURED), (&uri, ERRORS), (&read_only, REFUSES_WRITES)]
            {
                let mut command = nbdsh().unwrap();
                succeed(command.args(["--base-allocation", "-u", uri, "-c", script]));
            }
        }
    }
}
