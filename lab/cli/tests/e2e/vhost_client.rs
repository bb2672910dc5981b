//! Our vhost-user-blk client against another's server, qemu-storage-daemon, and against no server.
//!
//! Loads are verified over two queues, with both ways of waiting, with chained and with indirect
//! descriptors, with event indices and without.

use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Output;
use std::time::Duration;

use millrace_clients::vhost::{
    Client, ClientError, Descriptors, Options, Queue, Request, Status, Wait,
};
use millrace_tests::storage_daemon::StorageDaemon;
use millrace_tests::{Daemon, millrace_lab, poll_within, require_clients, run, tempdir};
use serde_json::Value;

const SIZE: u64 = 64 << 20;
const WAITS: [Wait; 2] = [Wait::Poll, Wait::Events];

fn bench(socket: &Path, arguments: &[&str]) -> Output {
    let mut command = millrace_lab();
    command.arg("bench").arg("--connect").arg(format!("vhost-user:{}", socket.display()));
    run(command.args(["--json", "--bs", "4k"]).args(arguments))
}

fn row(output: &Output) -> Value {
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let rows: Value = serde_json::from_str(&text).expect("the rows must be JSON");
    rows[0].clone()
}

#[test]
fn verified_load_over_two_queues_polls_and_sleeps() {
    require_clients!("qemu-storage-daemon");
    let server = StorageDaemon::start(SIZE);
    for wait in ["poll", "events"] {
        // 32 fit the ring chained, 128 only with indirect descriptors.
        for depth in ["1", "32", "128"] {
            let ios = if depth == "1" { "500" } else { "5000" };
            let load = ["--rw", "randwrite", "--verify", "--jobs", "2", "--seed", depth];
            let mut arguments = load.to_vec();
            arguments.extend(["--wait", wait, "--iodepth", depth, "--ios", ios, "--overwrite"]);
            let row = row(&bench(&server.socket(), &arguments));
            assert_eq!(row["stack"], format!("vhost-{wait}"));
            assert_eq!((row["total_err"].as_u64(), row["numjobs"].as_u64()), (Some(0), Some(2)));
            assert_eq!(row["total_ios"].as_u64(), ios.parse::<u64>().ok().map(|ios| 2 * ios));
            assert!(row["verified"].as_u64() > Some(400), "{row}");
            assert!(row["kicks_per_io"].as_f64() > Some(0.0), "{row}");
            let slept = row["interrupts_per_io"].as_f64() > Some(0.0);
            assert_eq!(slept, wait == "events", "{row}");
        }
    }
}

#[test]
fn what_one_queue_writes_is_in_image_and_another_queue_reads_it() {
    require_clients!("qemu-storage-daemon");
    let server = StorageDaemon::start(SIZE);
    let image = std::fs::File::open(server.image()).expect("the image is there");
    let mut round = 0u8;
    for wait in WAITS {
        for descriptors in [Descriptors::Chained, Descriptors::Indirect] {
            for event_idx in [true, false] {
                round += 1;
                let options = Options {
                    queues: 2,
                    wait,
                    descriptors: Some(descriptors),
                    event_idx,
                    ..Options::default()
                };
                let client = Client::connect(&server.socket(), options)
                    .expect("the client must connect to the server");
                assert_eq!(client.disk().size_bytes(), SIZE);
                assert_eq!((client.disk().block_bytes, client.disk().queues), (512, 2));
                let [mut first, mut second] = two(client);
                let bytes = vec![round; 4096];
                first.write_data(0, &bytes);
                assert_eq!(
                    first.call(Request::write(8, 4096)).expect("the server must answer"),
                    Status::OK
                );
                assert_eq!(
                    first.call(Request::flush()).expect("the server must answer"),
                    Status::OK
                );
                let mut found = vec![0; 4096];
                image.read_exact_at(&mut found, 4096).expect("the image is readable");
                assert!(found == bytes, "{options:?}");
                second.write_data(0, &[0; 4096]);
                assert_eq!(
                    second.call(Request::read(8, 4096)).expect("the server must answer"),
                    Status::OK
                );
                second.read_data(0, &mut found);
                assert!(found == bytes, "{options:?}");
            }
        }
    }
}

fn two(client: Client) -> [Queue; 2] {
    client.into_queues().try_into().expect("two queues were asked for")
}

#[test]
fn discards_zeroes_and_identity_work_within_the_disk_only() {
    require_clients!("qemu-storage-daemon");
    let server = StorageDaemon::start(SIZE);
    let options = Options { wait: Wait::Events, ..Options::default() };
    let client =
        Client::connect(&server.socket(), options).expect("the client must connect to the server");
    assert!(client.disk().discard_sectors_max > 0 && client.disk().write_zeroes_sectors_max > 0);
    let mut queue = client.into_queues().remove(0);
    let (status, id) = queue.identity().expect("the server must answer");
    assert_eq!((status, id.as_slice()), (Status::OK, &b"vhost_user_blk"[..]));
    for zeroes in [true, false] {
        queue.write_data(0, &[7; 4096]);
        assert_eq!(
            queue.call(Request::write(16, 4096)).expect("the server must answer"),
            Status::OK
        );
        let done = if zeroes { queue.write_zeroes(16, 8) } else { queue.discard(16, 8) };
        assert_eq!(done.expect("the server must answer"), Status::OK);
        assert_eq!(
            queue.call(Request::read(16, 4096)).expect("the server must answer"),
            Status::OK
        );
        let mut found = [7; 4096];
        queue.read_data(0, &mut found);
        assert_eq!(found, [0; 4096]);
    }
    let outside = queue.call(Request::read(SIZE >> 9, 4096)).expect("the server must answer");
    assert_eq!(outside, Status::IO_ERROR);
}

#[test]
fn server_that_dies_ends_wait_with_error_polling_and_sleeping() {
    require_clients!("qemu-storage-daemon");
    for wait in WAITS {
        let mut server = StorageDaemon::start(SIZE);
        let options = Options { wait, ..Options::default() };
        let client = Client::connect(&server.socket(), options)
            .expect("the client must connect to the server");
        let mut queue = client.into_queues().remove(0);
        assert_eq!(queue.call(Request::flush()).expect("the server must answer"), Status::OK);
        server.kill();
        let error = queue.call(Request::read(0, 4096)).expect_err("nobody is there");
        assert!(matches!(error, ClientError::Gone { queue: 0, in_flight: 1, .. }), "{error}");
    }
}

#[test]
fn a_server_with_fewer_queues_than_jobs_says_how_many_it_has() {
    require_clients!("qemu-storage-daemon");
    let server = StorageDaemon::start(SIZE);
    let output = bench(&server.socket(), &["--jobs", "3"]);
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("3 queues asked for, the vhost-user server has 2"), "{said}");
}

#[test]
fn no_listener_and_one_that_never_answers_are_told_apart() {
    let dir = tempdir();
    let socket = dir.path().join("s");
    let output = bench(&socket, &[]);
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("no vhost-user server at"), "{said}");
    let _silent = UnixListener::bind(&socket).expect("the directory of the test is writable");
    let output = bench(&socket, &[]);
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("no answer to the first vhost-user message"), "{said}");
}

#[test]
fn daemon_warns_at_start_that_descriptors_run_short() {
    let config = |queues: u32| {
        format!(
            "[[drive]]\nname = \"d0\"\nspec = \"null:size=1g\"\n\
             [[volume]]\nname = \"v\"\ndrives = [\"d0\"]\n\
             [[export]]\nvolume = \"v\"\nvhost-user-blk = \"unix:vm\"\nqueues = {queues}\n\
             threads = 1\n"
        )
    };
    let limited = ["prlimit", "--nofile=128:128"];
    let start = |queues| Daemon::start_under(&limited, &config(queues), &["vm"]);
    let enough = start(4);
    assert!(!enough.stderr().contains("descriptors"), "{}", enough.stderr());
    let few = start(64);
    let said = few.stderr();
    assert!(
        said.contains("64 queues of 1 exports to virtual machines need up to 204 file"),
        "{said}"
    );
    assert!(said.contains("the limit is 128"), "{said}");
    let socket = few.dir().join("vm");
    assert_ne!(bench(&socket, &["--jobs", "64", "--ios", "64"]).status.code(), Some(0));
    let cut_off = || {
        few.stderr().contains("disconnecting the frontend: the process is out of file descriptors")
    };
    let told = poll_within(Duration::from_secs(20), || cut_off().then_some(()));
    assert!(told.is_some(), "{}", few.stderr());
    // With fewer queues a guest is served all the same.
    assert_eq!(row(&bench(&socket, &["--jobs", "4", "--ios", "64"]))["total_err"], 0);
}
