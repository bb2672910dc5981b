//! Holes as libnbd sees them: hole chunks in structured reads, and copies that stay sparse.
//!
//! The volume is a stripe of four drives in chunks of 64 KiB, so that long reads touch all of them.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::process::Command;

use millrace_tests::raw_nbd::RawNbd;
use millrace_tests::serving::{backends, four_files, pattern, stripe, succeed, uri};
use millrace_tests::{Daemon, nbdsh, require_clients, tempdir};

const MIB: u64 = 1 << 20;

/// Defines `chunks`, which reads and lists what each chunk of the reply is, and what follows from
/// them.
const CHUNKS: &str = r#"
def chunks(offset, count, flags=0):
    data, seen = bytearray(b"\xee" * count), []
    def chunk(buf, at, status, err):
        kind = {nbd.READ_DATA: "data", nbd.READ_HOLE: "hole", nbd.READ_ERROR: "error"}[status]
        seen.append((kind, at, len(buf)))
        data[at - offset:at - offset + len(buf)] = buf if kind == "data" else bytes(len(buf))
    whole = h.pread_structured(count, offset, chunk, flags)
    assert whole == data, "the chunks cover the read"
    return seen, whole
def kind(offset, count, flags=0):
    seen, whole = chunks(offset, count, flags)
    assert [found[1:] for found in seen] == [(offset, count)], seen
    assert seen[0][0] == "data" or whole == bytes(count)
    return seen[0][0]
def is_hole(offset, count, flags=0):
    # A connection that has found no hole for a while looks for one ever more rarely.
    return any(kind(offset, count, flags) == "hole" for _ in range(66))
"#;

const KEEPS_DATA: &str = r#"
K, M = 1024, 1024 * 1024
assert kind(0, 16 * M) == "hole" and kind(M, 64 * K, nbd.CMD_FLAG_DF) == "hole"
assert kind(0, 64 * K - 512) == "data", "a short read is not looked up"
h.pwrite(b"\x5a" * 4096, 2 * M + 4096)
assert chunks(M, 2 * M)[1] == bytes(M + 4096) + b"\x5a" * 4096 + bytes(M - 8192)
assert not is_hole(2 * M, 64 * K) and not is_hole(2 * M - 64 * K, 128 * K, nbd.CMD_FLAG_DF)
assert is_hole(2 * M + 64 * K, 128 * K)
h.trim(64 * K, 2 * M)
assert is_hole(M, 2 * M)
h.pwrite(b"\xa5" * M, M, nbd.CMD_FLAG_FUA)
assert chunks(M, M)[1] == b"\xa5" * M
h.zero(M, M)
assert is_hole(M, M)
"#;

const GETS_ITS_READS: &str = "assert not is_hole(0, 1048576)";

const FAILS: &str = r#"
for count in [512, 65536, 1048576, 1048576]:
    try:
        chunks(0, count)
        assert False, "a read of a dead drive"
    except nbd.Error as error:
        assert error.errno == "EIO", error.errno
# One drive of four is dead, and the others have holes of 64 KiB.
assert is_hole(65536, 3 * 65536) and not is_hole(65536, 512)
"#;

fn shell(daemon: &Daemon, script: &str) {
    let mut command = nbdsh().expect("the caller has looked");
    succeed(command.args(["-u", &uri(daemon, "v"), "-c", &format!("{CHUNKS}{script}")]));
}

#[test]
fn libnbd_gets_hole_chunks_until_a_write_and_after_a_trim() {
    if nbdsh().is_none() {
        return;
    }
    for backend in backends() {
        for keys in ["", ",direct=off", ",aio=threads"] {
            let dir = tempdir();
            let config = stripe(backend, &four_files(dir.path(), 16, keys));
            shell(&Daemon::start_in(dir, &config, &["s"], &[]), KEEPS_DATA);
        }
        let ram = Daemon::start(&stripe(backend, &["ram:size=16m"; 4]), &["s"]);
        shell(&ram, KEEPS_DATA);
        let null = Daemon::start(&stripe(backend, &["null:size=16m"; 4]), &["s"]);
        shell(&null, GETS_ITS_READS);
    }
}

#[test]
fn libnbd_gets_an_error_and_no_hole_from_a_dead_drive() {
    if nbdsh().is_none() {
        return;
    }
    let (dead, good) = ("fault:drive=(ram:size=16m),dead=on", "fault:drive=(ram:size=16m)");
    for backend in backends() {
        let daemon = Daemon::start(&stripe(backend, &[dead, good, good, good]), &["s"]);
        shell(&daemon, FAILS);
    }
}

#[test]
fn nbdcopy_keeps_a_sparse_volume_with_and_without_extents() {
    require_clients!("nbdcopy");
    for backend in backends() {
        let dir = tempdir();
        let config = stripe(backend, &four_files(dir.path(), 64, ""));
        let daemon = Daemon::start_in(dir, &config, &["s"], &[]);
        let mut raw = RawNbd::connect(&daemon.dir().join("s"), "v").unwrap();
        let written = [(0, 4096), (9 * MIB - 512, MIB), (100 * MIB + 4096, 512), (255 * MIB, MIB)];
        let expected = File::create(daemon.dir().join("expected")).unwrap();
        expected.set_len(256 * MIB).unwrap();
        for (offset, length) in written {
            let data = pattern(length as usize, offset);
            raw.write(offset, &data).unwrap();
            expected.write_all_at(&data, offset).unwrap();
        }
        raw.flush().unwrap();
        let expected = fs::read(daemon.dir().join("expected")).unwrap();
        for extents in ["--requests=16", "--no-extents"] {
            let copy = daemon.dir().join("copy");
            succeed(Command::new("nbdcopy").arg(extents).arg(uri(&daemon, "v")).arg(&copy));
            assert!(fs::read(&copy).unwrap() == expected, "{backend} {extents}");
            assert!(fs::metadata(&copy).unwrap().blocks() * 512 < 16 * MIB, "{extents}");
            fs::remove_file(&copy).unwrap();
        }
    }
}
