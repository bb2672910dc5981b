//! Cost of an export whose guests are idle: no CPU time, before and after load.

use std::time::Duration;

use crate::alone;
use crate::vhost_support::{BACKENDS, Export, volume};
use millrace_clients::vhost::{Client, Options, Queue, Request, Wait};

const IDLE: Duration = Duration::from_secs(1);

/// CPU ticks and voluntary switches of all threads of exports so far.
fn spent() -> (u64, u64) {
    let (mut ticks, mut switches, mut threads) = (0, 0, 0);
    for thread in std::fs::read_dir("/proc/self/task").unwrap() {
        let path = thread.unwrap().path();
        let read = |name: &str| std::fs::read_to_string(path.join(name)).unwrap_or_default();
        let stat = read("stat");
        let Some((name, rest)) = stat.rsplit_once(')') else { continue };
        if name.contains("(vm") || name.contains("(millrace-v") {
            threads += 1;
            let number = |at: usize| rest.split(' ').nth(at).unwrap().parse::<u64>().unwrap();
            ticks += number(12) + number(13);
            let status = read("status");
            let line = status.lines().find(|line| line.starts_with("voluntary_ctxt_switches"));
            switches += line.unwrap().split_whitespace().nth(1).unwrap().parse::<u64>().unwrap();
        }
    }
    assert!(threads > 0, "no thread of an export has such a name");
    (ticks, switches)
}

fn stays_idle(when: &str) {
    // Work under way is finished first.
    std::thread::sleep(Duration::from_millis(300));
    let before = spent();
    std::thread::sleep(IDLE);
    let after = spent();
    let (ticks, switches) = (after.0 - before.0, after.1 - before.1);
    // A tick may be charged to any thread that runs when the timer fires.
    assert!(ticks <= 1 && switches <= 5, "{when}: {ticks} ticks, {switches} switches in {IDLE:?}");
}

fn load(queue: &mut Queue) {
    for round in 0..1000 {
        let request = match round % 200 {
            0..100 => Request::write(8 * (round % 100), 4096),
            199 => Request::flush(),
            _ => Request::read(8 * (round % 100), 4096),
        };
        assert!(queue.call(request).unwrap().is_ok());
    }
}

#[test]
fn exports_with_idle_guests_use_no_cpu_before_and_after_load() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let specs = BACKENDS.into_iter().flat_map(|backend| [(backend, true), (backend, false)]);
    let start = |(index, (backend, file))| {
        let path = dir.path().join(format!("{index}"));
        let spec = match file {
            true => format!("file:path={},size=16m", path.display()),
            false => "ram:size=16m".to_owned(),
        };
        Export::of(backend, &[volume(&spec)], |_| {})
    };
    let exports: Vec<Export> = specs.enumerate().map(start).collect();
    stays_idle("without a guest");
    let options = Options { queues: 2, wait: Wait::Events, ..Options::default() };
    let connect = |export: &Export| Client::connect(&export.socket(0), options).unwrap();
    let mut queues: Vec<Queue> =
        exports.iter().flat_map(|export| connect(export).into_queues()).collect();
    stays_idle("with guests that have done nothing");
    std::thread::scope(|scope| {
        for queue in &mut queues {
            scope.spawn(|| load(queue));
        }
    });
    stays_idle("after load");
    queues.iter_mut().for_each(load);
    drop(queues);
    stays_idle("after the guests have gone");
    exports.into_iter().for_each(Export::stop);
}
