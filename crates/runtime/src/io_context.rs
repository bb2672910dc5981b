//! `IoContext`: an I/O thread with one reactor, one doorbell, and the channels that run on it.
//!
//! An `IoContext` is created on the thread that will run it. The context makes the thread the owner
//! of a hardware queue of every drive: the queue with the thread's number ([`IoContext::channel`]),
//! or the first queue that has no owner ([`IoContext::join`]). A channel's `wait` arms the
//! doorbell, checks for work once more, and sleeps in the ring. File drives find the reactor
//! through a thread-local variable that lives as long as this value.

use std::cell::RefCell;
use std::mem::ManuallyDrop;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use millrace_block::{
    Channel, ChannelConfig, Disk, Error, ErrorKind, IoThread, Stamp, Volume, Worker,
};
use millrace_machine::{Doorbell, Machine, Native, NativeParker, debug_fields};
use millrace_reactor::{Backend, Config, Handle, Reactor, Wait, now_ns};

/// The parts of an I/O thread's reactor that its drivers need.
#[derive(Debug, Clone)]
pub struct Current {
    /// Handle of the reactor.
    pub handle: Handle,
    /// Eventfd that any thread may write to wake the reactor's blocked thread.
    pub wake: Arc<OwnedFd>,
    /// Back end of the reactor.
    pub backend: Backend,
}

thread_local! {
    /// Reactor of this thread, set and cleared by `IoContext`. The variable has no destructor, so
    /// that channels in other thread-local variables can wait for their I/O in their destructors.
    static REACTOR: RefCell<ManuallyDrop<Option<Current>>> =
        const { RefCell::new(ManuallyDrop::new(None)) };
}

/// Returns the calling I/O thread's reactor and its wake eventfd, or `None` if the thread has no
/// [`IoContext`].
#[must_use]
pub fn current() -> Option<Current> {
    REACTOR.with_borrow(|current| Option::clone(current))
}

/// Returns the reactor of the calling I/O thread, for drivers that open a queue on it.
#[must_use]
pub fn current_reactor() -> Option<Handle> {
    current().map(|current| current.handle)
}

fn turn_current(
    bell: &Doorbell<Native>,
    deadline_ns: Option<u64>,
    has_work: &dyn Fn() -> bool,
) -> Result<(), Error> {
    let Some(handle) = current_reactor() else {
        let text = "this thread's IoContext is gone; drop its channels first";
        return Err(Error::new(ErrorKind::System, text));
    };
    turn_ring(|wait| handle.turn(wait), bell, deadline_ns, has_work).map(|_| ())
}

/// Runs one event-loop iteration of the reactor, which sleeps unless there is work. `has_work` is
/// called after the doorbell is armed.
fn turn_ring(
    turn: impl FnOnce(Wait) -> Result<usize, std::io::Error>,
    bell: &Doorbell<Native>,
    deadline_ns: Option<u64>,
    has_work: impl FnOnce() -> bool,
) -> Result<usize, Error> {
    bell.arm();
    let wait = match deadline_ns {
        _ if has_work() => Wait::No,
        None => Wait::Forever,
        // Converts the deadline from the block layer's clock to the reactor's clock.
        Some(deadline) => Wait::Until(now_ns() + deadline.saturating_sub(Native::now())),
    };
    let turned = turn(wait);
    bell.disarm();
    turned.map_err(|error| Error::system(format!("I/O ring: {error}"), error.raw_os_error()))
}

/// Settings of an I/O thread.
#[derive(Debug, Clone, Default)]
pub struct IoConfig {
    /// Number of the thread, from 0. The thread owns the hardware queue of that number on each
    /// drive.
    pub number: u16,
    /// Settings of the reactor.
    pub reactor: Config,
}

/// Reactor, doorbell and channels of an I/O thread.
pub struct IoContext {
    reactor: Reactor,
    thread: IoThread<Native>,
    volumes: Vec<Arc<Volume<Native>>>,
}

debug_fields!(IoContext, reactor, thread, volumes);

impl IoContext {
    /// Makes the calling thread an I/O thread.
    ///
    /// # Errors
    /// `System` or `PermissionDenied` if neither io_uring nor epoll is available, `Busy` if the
    /// thread is an I/O thread already.
    pub fn new(config: IoConfig) -> Result<IoContext, Error> {
        static NEXT_OWNER: AtomicU64 = AtomicU64::new(1);
        if current_reactor().is_some() {
            return Err(Error::new(ErrorKind::Busy, "this thread is an I/O thread already"));
        }
        let reactor = Reactor::new(config.reactor)
            .map_err(|error| Error::system(format!("I/O thread: {error}"), error.raw_os_error()))?;
        let bell = Arc::new(Doorbell::new(NativeParker::from_eventfd(reactor.wake_fd())));
        let (handle, wake, backend) = (reactor.handle(), reactor.wake_fd(), reactor.backend());
        REACTOR.set(ManuallyDrop::new(Some(Current { handle, wake, backend })));
        let owner = NEXT_OWNER.fetch_add(1, Ordering::Relaxed);
        let thread = IoThread { number: config.number, owner, bell, turn: Some(turn_current) };
        Ok(IoContext { reactor, thread, volumes: Vec::new() })
    }

    /// Opens a channel of this thread to a volume. First opens the thread's hardware queue of each
    /// drive, if that queue is not open yet.
    ///
    /// # Errors
    /// Returns an error if a drive cannot open its queue.
    ///
    /// # Panics
    /// Panics if `depth` is not 1 to 65,536.
    pub fn channel(
        &mut self,
        volume: &Arc<Volume<Native>>,
        depth: u32,
        stamp: Stamp,
    ) -> Result<Channel<Native>, Error> {
        if !self.volumes.iter().any(|known| Arc::ptr_eq(known, volume)) {
            for disk in volume.disks() {
                disk.bring_up(self.thread.number, &self.thread)?;
            }
            self.volumes.push(Arc::clone(volume));
        }
        let thread = Some(self.thread.clone());
        Channel::open(volume, ChannelConfig { depth, stamp, thread })
    }

    /// Claims one free hardware queue on each of the volume's drives. The number of the queue may
    /// differ from the number of this thread. Channels to the volume ([`IoContext::channel`]) use
    /// these queues from then on.
    ///
    /// # Errors
    /// `Busy` if other threads own all queues of a drive, or the error of opening a queue. In these
    /// cases no queue is claimed.
    pub fn join(&mut self, volume: &Arc<Volume<Native>>) -> Result<(), Error> {
        if self.volumes.iter().any(|known| Arc::ptr_eq(known, volume)) {
            return Ok(());
        }
        self.volumes.push(Arc::clone(volume));
        let mut disks = volume.disks().iter();
        disks.try_for_each(|disk| disk.claim(&self.thread)).inspect_err(|_| self.leave(volume))
    }

    /// Gives up this thread's queues on the volume's drives, so that other threads can claim them.
    /// The thread's channels to the volume must be closed already. The drives' files stay open as
    /// long as the volume lives.
    pub fn leave(&mut self, volume: &Arc<Volume<Native>>) {
        self.volumes.retain(|known| !Arc::ptr_eq(known, volume));
        for disk in volume.disks() {
            let mut others = self.volumes.iter().flat_map(|volume| volume.disks());
            if !others.any(|other| Arc::ptr_eq(other, disk)) {
                disk.bring_down(&self.thread);
            }
        }
    }

    /// Creates a worker on this thread that serves these disks for other threads. The caller must
    /// call `Worker::turn` between two event-loop iterations ([`IoContext::turn`]), and drop the
    /// worker before this context.
    ///
    /// # Errors
    /// `Busy` if a disk has no CPU for a worker or already has another worker, or the error of
    /// opening the disk's queue.
    pub fn worker(&mut self, disks: &[Arc<Disk<Native>>]) -> Result<Worker<Native>, Error> {
        let mut worker = Worker::new(&self.thread);
        for disk in disks {
            if !worker.serve(disk)? {
                let text = format!(
                    "drive {}: no place for a worker, or another worker serves it; give its disk \
                     a worker's CPU, and start its workers once",
                    disk.name()
                );
                return Err(Error::new(ErrorKind::Busy, text));
            }
        }
        Ok(worker)
    }

    /// Returns the reactor, which the caller may use for sockets and timers as well.
    #[must_use]
    pub fn reactor(&mut self) -> &mut Reactor {
        &mut self.reactor
    }

    /// Returns the doorbell that other threads ring when they have work for this thread.
    #[must_use]
    pub fn bell(&self) -> &Arc<Doorbell<Native>> {
        &self.thread.bell
    }

    /// Runs one event-loop iteration of the reactor: submits all pushed operations and sleeps until
    /// an operation completes, the doorbell rings, or the clock of `Native::now` reaches
    /// `deadline_ns`. Calls `has_work` after arming the doorbell, and does not sleep if it returns
    /// true.
    ///
    /// # Errors
    /// `System` if the ring itself fails.
    pub fn turn(
        &mut self,
        deadline_ns: Option<u64>,
        has_work: impl FnOnce() -> bool,
    ) -> Result<usize, Error> {
        let reactor = &mut self.reactor;
        turn_ring(|wait| reactor.turn(wait), &self.thread.bell, deadline_ns, has_work)
    }
}

impl Drop for IoContext {
    fn drop(&mut self) {
        for disk in self.volumes.iter().flat_map(|volume| volume.disks()) {
            disk.bring_down(&self.thread);
        }
        drop(ManuallyDrop::into_inner(REACTOR.take()));
    }
}
