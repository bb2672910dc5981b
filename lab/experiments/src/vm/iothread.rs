//! An I/O thread, which takes requests from virtqueues and sends them to the block layer.
//!
//! Each I/O thread is one simulated thread. An iteration of its loop checks notifications, takes
//! the rings' requests into the channel, submits them together, collects completions, puts them on
//! the used rings, and interrupts the guest. The model adds the time of QEMU and of its system
//! calls to the production code (`Channel`, `BatchPacer`, `Polling`). QEMU 2.1 publishes each
//! completed request separately, and signals the guest for each one if the driver asks for an
//! interrupt (`complete_request_vring`; 2.2 has a bottom half for all requests). Like QEMU, the
//! thread enables notifications as soon as it has emptied a ring, but not while it polls. Without
//! work it polls for the time that `Polling` allows, then sleeps.

use std::sync::Arc;

use millrace_block::{Bio, Buffer, Channel, ChannelConfig, IoThread, Op, Stamp};
use millrace_exports::vhost::pace::BatchPacer;
use millrace_exports::vhost::polling::Polling;
use millrace_machine::{CpuId, Machine, Stage};
use millrace_simulator::Simulated;

use super::Effect;
use super::costs::charge;
use super::machine::{ThreadHandle, Vm};
use super::memory::GuestMemory;
use super::ring::{Ring, VmRequest};

use millrace_machine::lock_unpoisoned;

struct Queue {
    number: u32,
    ring: Arc<Ring>,
    taken: u64,
    used: u64,
    published: u64,
}

impl Queue {
    /// Publishes to the driver the used-ring entries added since the last call. Returns true if the
    /// device must interrupt the guest.
    fn shows_done(&mut self) -> bool {
        let published = std::mem::replace(&mut self.published, self.used);
        self.used > published && self.ring.publish(self.used, published)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NotificationRule {
    /// Enable the notification of the next request.
    Asked,
    /// Neither enable nor disable notifications, because the thread polls the ring.
    AsTheyAre,
}

pub(super) struct IoThreadState<'a> {
    vm: &'a Vm,
    handle: &'a ThreadHandle,
    memory: &'a GuestMemory,
    queues: Vec<Queue>,
    channel: Channel<Simulated>,
    pace: BatchPacer,
    polling: Polling,
    requests: Vec<(u32, VmRequest)>,
    free: Vec<usize>,
    bios: Vec<Bio>,
    /// Number of requests taken from the rings but not submitted yet. The first of these requests
    /// was taken at `since_ns`.
    in_hand: u32,
    since_ns: u64,
}

pub(super) fn run(vm: &Vm, number: u32) {
    let served = vm.plan.served;
    let handle = &vm.handles[number as usize];
    if vm.plan.has(Effect::Roaming) && served.threads == 1 {
        Simulated::roam();
    }
    let queue = |queue: u32| Queue {
        number: queue,
        ring: Arc::clone(&vm.rings[queue as usize]),
        taken: 0,
        used: 0,
        published: 0,
    };
    let mine = (0..served.queues).filter(|queue| queue % served.threads == number);
    let queues: Vec<Queue> = mine.map(queue).collect();
    let thread = IoThread {
        number: number as u16,
        owner: u64::from(number) + 1,
        bell: Arc::clone(&handle.bell),
        turn: None,
    };
    // The channel is never full, because it has as many slots as all rings together.
    let config = ChannelConfig {
        depth: 128 * queues.len() as u32,
        stamp: Stamp::Batch,
        thread: Some(thread),
    };
    let mut io = IoThreadState {
        vm,
        handle,
        memory: &vm.memory[number as usize % vm.memory.len()],
        queues,
        channel: Channel::open(&vm.volume, config)
            .expect("Channel::open must succeed on an I/O thread"),
        pace: BatchPacer::new(served.wait_max_ns),
        polling: Polling::new(served.poll_max_ns),
        requests: Vec::new(),
        free: Vec::new(),
        bios: Vec::new(),
        in_hand: 0,
        since_ns: 0,
    };
    while io.turn() {}
}

impl IoThreadState<'_> {
    /// Runs one iteration of the loop. Returns false once all processes have ended and no I/O is in
    /// flight.
    fn turn(&mut self) -> bool {
        self.vm.cores.enter(None);
        self.system_call(&self.vm.costs.device.poll);
        let mut busy = self.take();
        busy |= self.submit();
        busy |= self.collect();
        if !busy {
            if self.vm.is_over() && self.channel.in_flight() == 0 {
                return false;
            }
            self.wait();
        }
        true
    }

    fn system_call(&self, body: &millrace_simulator::Cost) {
        Simulated::system_call();
        charge(body, 1);
    }

    /// Takes requests from the rings that have notified the thread, or from all rings while it
    /// polls.
    fn take(&mut self) -> bool {
        let kicked = std::mem::take(&mut *lock_unpoisoned(&self.handle.kicked));
        let polls = self.polling.spin_ns() > 0;
        let before = self.in_hand;
        for index in 0..self.queues.len() {
            let notified = kicked & (1 << self.queues[index].number) != 0;
            if notified {
                self.system_call(&self.vm.costs.device.event);
            }
            if notified || polls {
                self.empty(
                    index,
                    if polls { NotificationRule::AsTheyAre } else { NotificationRule::Asked },
                );
            }
        }
        self.in_hand > before
    }

    fn empty(&mut self, index: usize, kicks: NotificationRule) {
        let ring = Arc::clone(&self.queues[index].ring);
        loop {
            let available = ring.available();
            let fresh = (available - self.queues[index].taken) as u32;
            if fresh > 0 {
                self.arrived(fresh);
            }
            for _ in 0..fresh {
                let request = ring.pop();
                self.start(self.queues[index].number, request);
            }
            self.queues[index].taken = available;
            if kicks == NotificationRule::AsTheyAre || ring.ask_for_kicks(available) {
                return;
            }
        }
    }

    fn arrived(&mut self, fresh: u32) {
        if self.vm.plan.served.wait_max_ns > 0 {
            let now_ns = Simulated::now();
            self.pace.arrived(now_ns, fresh);
            if self.in_hand == 0 {
                self.since_ns = now_ns;
            }
        }
    }

    fn start(&mut self, queue: u32, request: VmRequest) {
        let (costs, bs_bytes) = (&self.vm.costs.device, self.vm.plan.workload.bs_bytes);
        charge(&costs.request, 1);
        let pages = bs_bytes.div_ceil(4096);
        charge(&costs.page, pages - 1);
        if self.memory.translate(pages) > 0 {
            // The thread slept while it waited for the map of the guest's memory. Another thread
            // may have used the CPU meanwhile. Record in `Cores` that the CPU runs an I/O thread
            // again.
            self.vm.cores.enter(None);
        }
        let place = self.free.pop().unwrap_or(self.requests.len());
        if place == self.requests.len() {
            self.requests.push((queue, request));
        } else {
            self.requests[place] = (queue, request);
        }
        let new = || Bio::read(0, Buffer::new(bs_bytes as usize));
        let mut bio = self.bios.pop().unwrap_or_else(new);
        bio.set_sector(request.sector);
        bio.set_op(if request.op == Op::Write { Op::Write } else { Op::Read });
        bio.set_user_data(place as u64);
        let accepted = self.channel.submit(bio);
        assert!(
            accepted.is_ok(),
            "the channel has room for all slots, and the request's sectors lie within the drive"
        );
        self.in_hand += 1;
    }

    /// Submits the requests taken so far. Waits for further requests first if `BatchPacer` expects
    /// the wait to save time. Returns false if there are no requests.
    fn submit(&mut self) -> bool {
        if self.in_hand == 0 {
            return false;
        }
        let mut held = false;
        while self.vm.plan.served.wait_max_ns > 0 {
            let now_ns = Simulated::now();
            let Some(until_ns) = self.pace.hold_until(now_ns, self.in_hand, self.since_ns) else {
                break;
            };
            held = true;
            let queues = &self.queues;
            let more = || queues.iter().any(|queue| queue.ring.available() > queue.taken);
            if !Simulated::spin_until(until_ns, more) {
                break;
            }
            (0..self.queues.len()).for_each(|index| self.empty(index, NotificationRule::Asked));
        }
        let count = std::mem::take(&mut self.in_hand);
        let costs = &self.vm.costs.device;
        self.system_call(&costs.submit);
        Simulated::work(Stage::Interface, count);
        self.channel.flush();
        self.pace.submitted(self.vm.turn_ns, count);
        self.vm.count(|counts| {
            counts.submissions += 1;
            counts.held += u64::from(held);
            counts.submitted += u64::from(count);
        });
        true
    }

    /// Puts completions on the used rings, and interrupts the guest. Returns false if no I/O has
    /// completed.
    fn collect(&mut self) -> bool {
        let mut done = Vec::new();
        let count = self.channel.poll(|completion| done.push(completion)) as u32;
        if count == 0 {
            return false;
        }
        if self.vm.plan.interrupts && !self.vm.plan.served.steered {
            // Charge an interrupt between this CPU and CPU 0, which takes the drive's interrupt and
            // forwards it to this thread.
            Simulated::interrupt(CpuId(0));
        }
        // Charge the system calls that read the eventfd and the completions (`io_getevents`).
        Simulated::system_call();
        self.system_call(&self.vm.costs.device.reap);
        for completion in done {
            charge(&self.vm.costs.device.complete, 1);
            let place = completion.user_data as usize;
            let (number, request) = self.requests[place];
            self.free.push(place);
            self.bios.push(completion.bio);
            let queue = self.queues.iter_mut().find(|queue| queue.number == number);
            let queue = queue.expect("the request must be from a queue of this I/O thread");
            queue.ring.push_used(request, queue.used);
            queue.used += 1;
            if self.vm.plan.has(Effect::Signals) && queue.shows_done() {
                self.signal(number);
            }
        }
        self.pace.completed(count);
        for index in 0..self.queues.len() {
            if self.queues[index].shows_done() {
                self.signal(self.queues[index].number);
            }
        }
        true
    }

    fn signal(&self, queue: u32) {
        self.vm.count(|counts| counts.signals += 1);
        self.system_call(&self.vm.costs.device.signal);
        let vcpu = &self.vm.vcpus[self.vm.plan.served.target(queue) as usize];
        vcpu.interrupt(1 << queue, &self.vm.cores);
    }

    fn wait(&mut self) {
        let start_ns = Simulated::now();
        let spin_ns = self.polling.spin_ns();
        if spin_ns > 0 {
            let (queues, channel) = (&self.queues, &self.channel);
            let more = || {
                queues.iter().any(|queue| queue.ring.available() > queue.taken)
                    || channel.has_work()
                    || self.vm.is_over()
            };
            if Simulated::spin_until(start_ns + spin_ns, more) {
                self.polling.caught(Simulated::now() - start_ns);
                return;
            }
            // Stop polling and enable the guest's notifications.
            let quiet = |queue: &Queue| queue.ring.ask_for_kicks(queue.taken);
            if !self.queues.iter().all(quiet) {
                return;
            }
        }
        let deadline_ns = self.channel.sleep_until();
        let (channel, vm, handle) = (&self.channel, self.vm, self.handle);
        let slept_ns = Simulated::now();
        vm.count(|counts| counts.sleeps += 1);
        let ready = || *lock_unpoisoned(&handle.kicked) != 0 || channel.has_work() || vm.is_over();
        handle.bell.sleep_unless(deadline_ns, ready);
        self.polling.slept(spin_ns, Simulated::now() - slept_ns);
        self.channel.tick();
    }
}
