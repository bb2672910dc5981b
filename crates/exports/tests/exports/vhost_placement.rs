//! CPUs of an export's I/O threads, and their polling beside a guest on the same CPU.
//!
//! Each test looks at the threads of its own export only.

use std::path::Path;

use crate::vhost_support::{BACKENDS, Export, volume};
use millrace_clients::vhost::{Client, Options, Request, Wait};
use millrace_machine::{CpuId, Machine, Native, Thread};

/// Requests in a load: enough that the pauses between vain polls grow long before it ends.
const IOS: u64 = 4096;

/// Reads one block after the other, on the CPU named.
fn load(socket: &Path, wait: Wait, cpu: CpuId) {
    let socket = socket.to_owned();
    let body = move || {
        let options = Options { queues: 1, wait, ..Options::default() };
        let mut queue = Client::connect(&socket, options).unwrap().into_queues().remove(0);
        for round in 0..IOS {
            assert!(queue.call(Request::read(8 * (round % 100), 4096)).unwrap().is_ok());
        }
    };
    assert!(Native::spawn("guest", Some(cpu), Box::new(body)).join());
}

/// The guest never gives its CPU away, or sleeps for each answer: a poll of the thread that serves
/// it on that CPU ends with a request soon, by turns with the guest, or there are hardly any polls.
#[test]
fn a_thread_on_the_cpu_of_its_guest_does_not_poll_in_vain() {
    let cpu = Native::topology().cpus()[0].id;
    for backend in BACKENDS {
        for wait in [Wait::Spin, Wait::Poll, Wait::Events] {
            let change = |export: &mut millrace_exports::vhost::VhostExport| {
                export.cpus = vec![cpu];
                export.threads = millrace_exports::vhost::Threads::Count(1);
            };
            let export = Export::of(backend, &[volume("null:size=1g")], change);
            load(&export.socket(0), wait, cpu);
            crate::vhost_support::until("the counters are published", || {
                export.stats().requests >= IOS
            });
            let stats = export.threads()[0].thread;
            assert!(stats.poll_misses < IOS / 16, "{backend:?} {wait:?}: {stats:?}");
            // Polls beside a guest that keeps the CPU cost a time slice each, until the thread
            // stops polling.
            let found_out_ns = 300_000_000;
            let turns_ns = (stats.poll_hits + stats.poll_misses) * 30_000;
            assert!(stats.poll_ns < found_out_ns + turns_ns, "{backend:?} {wait:?}: {stats:?}");
            export.stop();
        }
    }
}
