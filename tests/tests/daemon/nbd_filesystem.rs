//! A real file system on an export: ext4 through nbdfuse and a loop device, over a restart.
//!
//! Needs root, /dev/fuse and loop devices; where one is refused, as in most containers, the test is
//! skipped with a printed reason.

use std::fs;
use std::path::Path;
use std::process::Command;

use millrace_tests::mounted::{Fuse, Mount, obstacle};
use millrace_tests::serving::{backends, four_files, stripe, succeed, uri};
use millrace_tests::{Daemon, client, require_clients, tempdir};

fn is_clean(disk: &Path) {
    succeed(Command::new(client("e2fsck").unwrap()).arg("-fn").arg(disk));
}

fn survives(backend: &str, tree: &Path) {
    let work = tempdir();
    let (fuse_dir, mnt) = (work.path().join("fuse"), work.path().join("mnt"));
    let config = stripe(backend, &four_files(work.path(), 64, ""));

    let mut daemon = Daemon::start(&config, &["s"]);
    let fuse = Fuse::mount(&uri(&daemon, "v"), &fuse_dir);
    succeed(Command::new(client("mkfs.ext4").unwrap()).args(["-q", "-F"]).arg(fuse.disk()));
    let mount = Mount::new(&fuse.disk(), &mnt, "rw");
    succeed(Command::new("cp").arg("-a").arg(tree).arg(mnt.join("tree")));
    // Something large, something small, something gone.
    fs::write(mnt.join("large"), vec![0xa5; 20 << 20]).unwrap();
    fs::write(mnt.join("gone"), vec![0x5a; 8 << 20]).unwrap();
    succeed(Command::new("sync").arg("-f").arg(&mnt));
    fs::remove_file(mnt.join("gone")).unwrap();
    mount.unmount();
    is_clean(&fuse.disk());
    fuse.unmount();
    let status = daemon.terminate();
    assert!(status.success(), "{status}: {}", daemon.stderr());
    drop(daemon);

    let daemon = Daemon::start(&config, &["s"]);
    let fuse = Fuse::mount(&uri(&daemon, "v"), &fuse_dir);
    is_clean(&fuse.disk());
    let mount = Mount::new(&fuse.disk(), &mnt, "ro");
    succeed(Command::new("diff").args(["-r", "--no-dereference"]).arg(tree).arg(mnt.join("tree")));
    assert!(fs::read(mnt.join("large")).unwrap() == vec![0xa5; 20 << 20]);
    assert!(!mnt.join("gone").exists());
    mount.unmount();
    fuse.unmount();
}

#[test]
fn ext4_on_an_export_keeps_a_source_tree_over_a_restart() {
    require_clients!("nbdfuse", "fusermount3", "mkfs.ext4", "e2fsck", "mount");
    if let Some(why) = obstacle() {
        return millrace_require::skip(format_args!("no loop mount on this machine: {why}"));
    }
    // A copy, because the sources may change while the test runs.
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    let copy = tempdir();
    let tree = copy.path().join("crates");
    succeed(Command::new("cp").arg("-r").arg(own.with_file_name("crates")).arg(&tree));
    for backend in backends() {
        survives(backend, &tree);
    }
}
