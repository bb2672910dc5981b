//! The reactor and its handles: the public face over the two back ends.
//!
//! Owns the shared core (hub and back end) through an `Rc`, so neither the reactor nor a handle
//! can leave the thread that made it. Calls nothing back: the core is borrowed only inside a call.
//! A reactor that is dropped cancels all that is outstanding and waits up to 5 s for it; after
//! that, handles still work but everything pushed completes with `-ECANCELED` at once. So it
//! does in the child of a fork, whose parent keeps the ring.

#![allow(unsafe_code)]

use millrace_machine::Deadline;

use crate::config::{Backend, Config, Counters, Features, FileCarrier, FileDemand, Wait};
use crate::epoll::Epoll;
use crate::hub::Hub;
use crate::lent::Extent;
use crate::op::{Completion, FileRef, Op, Source};
use crate::pool::PoolShare;
use crate::sys;
use crate::uring::Uring;
use crate::uring::tables::Tables;
use io_uring::Submitter;
use std::cell::RefCell;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{OwnedFd, RawFd};
use std::rc::{Rc, Weak};
use std::sync::{Arc, Once};

/// How long a dropped reactor waits for outstanding operations.
const DRAIN_NS: u64 = 5 * sys::NS_PER_S;
/// User data must stay below this.
const USER_DATA_END: u64 = 1 << 48;

enum Engine {
    Uring(Box<Uring>),
    Epoll(Box<Epoll>),
    Closed,
}

struct Core {
    hub: Hub,
    engine: Engine,
}

impl Core {
    fn turn(&mut self, wait: Wait) -> Result<usize, io::Error> {
        self.hub.counters.turns += 1;
        match &mut self.engine {
            Engine::Uring(uring) => uring.turn(&mut self.hub, wait)?,
            Engine::Epoll(epoll) => epoll.turn(&mut self.hub, wait)?,
            Engine::Closed => {}
        }
        Ok(self.hub.table.take_delivered())
    }

    /// Lets go of a ring that another process has, too, and with it of what is outstanding there.
    fn leave_to_parent(&mut self) {
        std::mem::forget(std::mem::replace(&mut self.engine, Engine::Closed));
        let mut keys = Vec::new();
        self.hub.table.keys(&mut keys);
        keys.into_iter().for_each(|key| self.hub.table.complete(key, -libc::ECANCELED, 0));
    }
}

/// The cores of a thread's reactors.
type Cores = Vec<Weak<RefCell<Core>>>;

thread_local! {
    /// Without a destructor, so that it outlives reactors in other variables of its thread. The
    /// last reactor to go takes along what is allocated.
    static CORES: RefCell<ManuallyDrop<Cores>> =
        const { RefCell::new(ManuallyDrop::new(Vec::new())) };
}

/// Runs in the child of each fork, on the only thread that it has. A ring in memory that is shared
/// with the parent would take operations for the parent, and lose completions of it.
extern "C" fn after_fork() {
    CORES.with_borrow(|cores| {
        for core in cores.iter().filter_map(Weak::upgrade) {
            if let Ok(mut core) = core.try_borrow_mut() {
                core.leave_to_parent();
            }
        }
    });
}

/// Has a reactor of the calling thread let go of its ring in the children of forks.
fn watch_forks(core: &Rc<RefCell<Core>>) {
    static HANDLER: Once = Once::new();
    // SAFETY: the handler uses the memory of the thread that forks only, between two statements of
    // it.
    HANDLER.call_once(|| unsafe {
        libc::pthread_atfork(None, None, Some(after_fork));
    });
    CORES.with_borrow_mut(|cores| cores.push(Rc::downgrade(core)));
}

/// A proactor for one thread; see the crate's documentation.
pub struct Reactor {
    core: Rc<RefCell<Core>>,
    wake: Arc<OwnedFd>,
    backend: Backend,
    features: Features,
    fallback_reason: Option<String>,
}

/// What to do about a kernel that makes no ring.
fn remedy(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        // A ring counts as locked memory.
        Some(libc::ENOMEM) => "; raise the limit on locked memory (RLIMIT_MEMLOCK), or use epoll",
        _ => "",
    }
}

impl Reactor {
    /// Makes a reactor for the calling thread.
    ///
    /// # Errors
    ///
    /// `Backend::Uring` where io_uring is refused (the message names the reason), or no file
    /// descriptors left.
    pub fn new(config: Config) -> Result<Reactor, io::Error> {
        let hub = Hub::new()?;
        let mut fallback_reason = None;
        let mut engine = None;
        if config.backend != Backend::Epoll {
            match Uring::new(&config, &hub) {
                Ok(uring) => engine = Some(Engine::Uring(Box::new(uring))),
                Err(error) if config.backend == Backend::Uring => {
                    let text = format!("io_uring is not available: {error}{}", remedy(&error));
                    return Err(io::Error::new(error.kind(), text));
                }
                Err(error) => fallback_reason = Some(error.to_string()),
            }
        }
        let engine = match engine {
            Some(engine) => engine,
            None => Engine::Epoll(Box::new(Epoll::new(&config, &hub)?)),
        };
        let (backend, features) = match &engine {
            Engine::Uring(uring) => (Backend::Uring, uring.features()),
            _ => (Backend::Epoll, Features::default()),
        };
        let wake = Arc::clone(&hub.wake);
        let core = Rc::new(RefCell::new(Core { hub, engine }));
        watch_forks(&core);
        Ok(Reactor { core, wake, backend, features, fallback_reason })
    }

    /// `Uring` or `Epoll`.
    pub fn backend(&self) -> Backend {
        self.backend
    }

    /// Why io_uring was not used although it was tried.
    pub fn fallback_reason(&self) -> Option<&str> {
        self.fallback_reason.as_deref()
    }

    /// Which optional kernel features are on.
    pub fn features(&self) -> Features {
        self.features
    }

    /// A handle for pushing and taking, cheap to clone.
    pub fn handle(&self) -> Handle {
        Handle { core: Rc::clone(&self.core) }
    }

    /// The eventfd that ends a blocked turn: any thread writes the `u64` 1 to it.
    pub fn wake_fd(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.wake)
    }

    /// Submits all that was pushed, waits as told unless something has completed already, and
    /// puts completions into inboxes. Returns how many: wake-ups and an expired `Wait::Until`
    /// count as 0. May return 0 early (signal, internal completion).
    ///
    /// # Errors
    ///
    /// Only for failures of the ring or the epoll instance itself; those of operations are in
    /// their completions.
    pub fn turn(&mut self, wait: Wait) -> Result<usize, io::Error> {
        self.core.borrow_mut().turn(wait)
    }

    /// What the reactor did so far.
    pub fn counters(&self) -> Counters {
        self.core.borrow().hub.counters
    }
}

impl Drop for Reactor {
    /// Cancels everything and waits up to 5 s for what the kernel still holds. If something is
    /// outstanding even then, the ring is leaked, so that the kernel never loses the memory it
    /// shares with it; the memory of such operations must not be freed by its owner either.
    fn drop(&mut self) {
        CORES.with_borrow_mut(|cores| {
            cores.retain(|core| !std::ptr::eq(core.as_ptr(), Rc::as_ptr(&self.core)));
            if cores.is_empty() {
                **cores = Vec::new();
            }
        });
        let Ok(mut core) = self.core.try_borrow_mut() else { return };
        let core = &mut *core;
        let mut limit = Deadline::after_ns(DRAIN_NS);
        match std::mem::replace(&mut core.engine, Engine::Closed) {
            Engine::Uring(mut uring) => uring.close(&mut core.hub, &mut limit),
            Engine::Epoll(mut epoll) => epoll.close(&mut core.hub, &mut limit),
            Engine::Closed => {}
        }
    }
}

/// Pushes operations and takes completions, on the thread of its reactor.
#[derive(Clone)]
pub struct Handle {
    core: Rc<RefCell<Core>>,
}

impl Handle {
    /// A turn that does not wait. Returns how many completions it put into inboxes.
    ///
    /// # Errors
    ///
    /// As [`Reactor::turn`].
    pub fn turn_now(&self) -> Result<usize, io::Error> {
        self.turn(Wait::No)
    }

    /// A turn, as [`Reactor::turn`], for whoever has no access to the reactor itself: a channel
    /// that waits, or is being dropped.
    ///
    /// # Errors
    ///
    /// As [`Reactor::turn`].
    pub fn turn(&self, wait: Wait) -> Result<usize, io::Error> {
        self.core.borrow_mut().turn(wait)
    }

    /// Opens an inbox. Numbers of released ones are reused.
    ///
    /// # Panics
    ///
    /// With more than 65536 sources open.
    pub fn source(&self) -> Source {
        self.core.borrow_mut().hub.table.open()
    }

    /// Closes an inbox: what it holds and what still completes for it is dropped (a connection
    /// accepted for it is closed). Outstanding operations are not cancelled, and their memory
    /// must stay valid until the reactor is done with them.
    pub fn release(&self, source: Source) {
        self.core.borrow_mut().hub.release(source);
    }

    /// Queues an operation, which the next turn submits. Never blocks and never fails: what is
    /// wrong shows in its completion. A full submission queue costs a system call.
    ///
    /// # Safety
    ///
    /// All memory named by `op` stays valid, and unaliased as the operation requires, until its
    /// completion is taken; descriptors stay open until then.
    ///
    /// # Panics
    ///
    /// If the source was released or `user_data` is 2^48 or more.
    pub unsafe fn push(&self, source: Source, user_data: u64, op: Op) {
        assert!(user_data < USER_DATA_END, "user data has at most 48 bits");
        let core = &mut *self.core.borrow_mut();
        let key = core.hub.table.insert(source, user_data, op);
        core.hub.counters.sqes += 1;
        match &mut core.engine {
            Engine::Uring(uring) => uring.push(&mut core.hub, key),
            Engine::Epoll(epoll) => epoll.push(key),
            Engine::Closed => core.hub.table.complete(key, -libc::ECANCELED, 0),
        }
    }

    /// Moves all completions of an inbox to the end of `into`, in order of arrival.
    pub fn take(&self, source: Source, into: &mut Vec<Completion>) {
        self.core.borrow_mut().hub.table.take(source, into);
    }

    /// Operations of a source that were pushed and have not completed.
    pub fn pending(&self, source: Source) -> usize {
        self.core.borrow().hub.table.pending(source)
    }

    /// Registers a file, which saves the kernel a reference per operation. `Raw(fd)` where there
    /// is no table or it is full. The registration holds the file open on its own.
    pub fn register_file(&self, fd: RawFd) -> FileRef {
        self.with_tables(|tables, ring| tables.register_file(ring, fd)).unwrap_or(FileRef::Raw(fd))
    }

    /// Ends a registration; no operation on it may be outstanding. Nothing for `Raw`.
    pub fn unregister_file(&self, file: FileRef) {
        if let FileRef::Fixed(index) = file {
            self.with_tables(|tables, ring| tables.unregister_file(ring, index));
        }
    }

    /// Registers a region of memory for use as `buffer` in reads and writes. `None` where it is
    /// not supported, the table (1024) is full, the region is larger than 1 GiB, or the limit on
    /// locked memory forbids it.
    ///
    /// # Safety
    ///
    /// The region stays mapped until it is unregistered or the reactor is gone.
    pub unsafe fn register_buffer(&self, ptr: *mut u8, len: usize) -> Option<u16> {
        // SAFETY: promised by the caller.
        self.with_tables(|tables, ring| unsafe { tables.register_buffer(ring, ptr, len) })?
    }

    /// Ends a registration of a region.
    ///
    /// # Safety
    ///
    /// No operation that names `index` is outstanding.
    pub unsafe fn unregister_buffer(&self, index: u16) {
        // SAFETY: promised by the caller.
        self.with_tables(|tables, ring| unsafe { tables.unregister_buffer(ring, index) });
    }

    /// Lends a region, of which pieces of `piece_bytes` (at most 1 GiB) are registered as
    /// [`Handle::fixed_buffer`] is asked for memory in them: what no operation lies in costs
    /// nothing. A region may be lent several times. Nothing where buffers cannot be registered.
    ///
    /// # Safety
    ///
    /// The region stays mapped until it is taken back as many times, or the reactor is gone.
    ///
    /// # Panics
    ///
    /// If `piece_bytes` is 0.
    pub unsafe fn lend(&self, ptr: *mut u8, len: usize, piece_bytes: usize) {
        assert!(piece_bytes > 0, "pieces have a length");
        let region = Extent { start: ptr as usize, len };
        // SAFETY: promised by the caller.
        self.with_tables(|tables, _| unsafe { tables.lend(region, piece_bytes) });
    }

    /// Registers all of a region that is lent, up to the first piece that the kernel refuses, so
    /// that no operation waits for that. Blocks: of memory that was not used yet the system has to
    /// find and clear all, which takes seconds for a GiB on some machines.
    pub fn register_lent(&self, ptr: *mut u8, len: usize) {
        let region = Extent { start: ptr as usize, len };
        self.with_tables(|tables, ring| tables.register_lent(ring, region));
    }

    /// Takes back a region that was lent.
    ///
    /// # Safety
    ///
    /// No operation in it is outstanding, unless somebody else lends it to this reactor, too.
    pub unsafe fn take_back(&self, ptr: *mut u8, len: usize) {
        let region = Extent { start: ptr as usize, len };
        // SAFETY: promised by the caller.
        self.with_tables(|tables, ring| unsafe { tables.take_back(ring, region) });
    }

    /// Why the kernel refused to register a piece of a region that is lent, once for each region.
    pub fn take_refusal(&self) -> Option<io::Error> {
        self.with_tables(|tables, _| tables.take_refusal())?
    }

    /// The index of the registered region that contains all of the range. O(log n), but for the
    /// first range in a piece of a region that is lent, which is registered.
    pub fn fixed_buffer(&self, ptr: *const u8, len: usize) -> Option<u16> {
        self.with_tables(|tables, ring| tables.fixed_buffer(ring, ptr as usize, len))?
    }

    /// The index of the registered region that contains all of these pieces of memory, where the
    /// kernel takes lists of them there (Linux 6.15).
    pub fn fixed_vector(&self, pieces: &[libc::iovec]) -> Option<u16> {
        self.with_tables(|tables, ring| {
            if !tables.takes_vectors() {
                return None;
            }
            let mut all = pieces
                .iter()
                .map(|piece| tables.fixed_buffer(ring, piece.iov_base as usize, piece.iov_len));
            let first = all.next()??;
            all.all(|index| index == Some(first)).then_some(first)
        })?
    }

    /// Prepares for a source's operations on files: makes sure that there is a thread for those
    /// that block, of the kernel or of the process, and says which of them carries the operations.
    /// `share` is that of the drive, in which all its sources take part. Without this call a file
    /// whose operations hang would take all threads that the ring has. May wait for a thread to
    /// start.
    ///
    /// # Errors
    ///
    /// The system's refusal of a thread, with the limits that may be the reason.
    pub fn open_files(
        &self,
        source: Source,
        share: &Arc<PoolShare>,
        demand: FileDemand,
    ) -> Result<FileCarrier, io::Error> {
        let core = &mut *self.core.borrow_mut();
        let mut carrier = FileCarrier::Threads;
        if let (Engine::Uring(uring), false) = (&mut core.engine, demand.threads)
            && uring.has_worker(&mut core.hub)
        {
            uring.expect_blocking(demand.operations);
            carrier = FileCarrier::Ring;
        }
        if carrier == FileCarrier::Threads || demand.ioctls {
            share.reserve()?;
        }
        core.hub.set_share(source, Arc::clone(share), carrier);
        Ok(carrier)
    }

    /// Runs `f` on the ring's tables; `None` on the epoll back end.
    fn with_tables<R>(&self, f: impl FnOnce(&mut Tables, &Submitter<'_>) -> R) -> Option<R> {
        match &mut self.core.borrow_mut().engine {
            Engine::Uring(uring) => {
                let (tables, ring) = uring.tables();
                Some(f(tables, &ring))
            }
            _ => None,
        }
    }
}
