//! The reactor and its handles: the public interface over the two back ends.
//!
//! The reactor and its handles share the core through an `Rc`, so none of them can leave the thread
//! that created them. A reactor that is dropped cancels all operations in flight and waits up to 5
//! s for them. After that, handles still work, but every pushed operation completes with
//! `-ECANCELED` at once. After a fork, a reactor in the child process acts like a dropped one
//! (without the wait), because the parent keeps the ring.

#![allow(unsafe_code)]

use millrace_machine::{Deadline, debug_fields};

use crate::config::{Backend, Config, Counters, Features, FileCarrier, FileDemand, Wait};
use crate::epoll::Epoll;
use crate::hub::ReactorState;
use crate::lent::AddressRange;
use crate::op::{Completion, FileRef, Op, Source};
use crate::pool::PoolShare;
use crate::sys;
use crate::uring::Uring;
use crate::uring::tables::RegisteredTables;
use io_uring::Submitter;
use std::cell::RefCell;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{OwnedFd, RawFd};
use std::rc::{Rc, Weak};
use std::sync::{Arc, Once};

/// Maximum time that a dropped reactor waits for operations in flight, in nanoseconds.
const DRAIN_NS: u64 = 5 * sys::NS_PER_S;
const USER_DATA_END: u64 = 1 << 48;

enum Engine {
    Uring(Box<Uring>),
    Epoll(Box<Epoll>),
    Closed,
}

struct ReactorCore {
    hub: ReactorState,
    engine: Engine,
}

impl ReactorCore {
    fn turn(&mut self, wait: Wait) -> Result<usize, io::Error> {
        self.hub.counters.turns += 1;
        match &mut self.engine {
            Engine::Uring(uring) => uring.turn(&mut self.hub, wait)?,
            Engine::Epoll(epoll) => epoll.turn(&mut self.hub, wait)?,
            Engine::Closed => {}
        }
        Ok(self.hub.table.take_delivered())
    }

    /// Abandons the parent's ring in a child process, and completes the operations in flight as
    /// cancelled.
    fn leave_to_parent(&mut self) {
        std::mem::forget(std::mem::replace(&mut self.engine, Engine::Closed));
        for key in self.hub.table.keys() {
            self.hub.table.complete(key, -libc::ECANCELED, 0);
        }
    }
}

type ReactorCores = Vec<Weak<RefCell<ReactorCore>>>;

thread_local! {
    /// Reactors of this thread. The variable has no destructor, so that it outlives reactors in
    /// other thread-local variables. The last reactor that is dropped frees the list's memory.
    static CORES: RefCell<ManuallyDrop<ReactorCores>> =
        const { RefCell::new(ManuallyDrop::new(Vec::new())) };
}

/// Closes the forking thread's reactors in the child process, after each fork. The child shares the
/// ring's memory with the parent: if the child used the ring, the parent would see the child's
/// operations and lose completions.
extern "C" fn after_fork() {
    CORES.with_borrow(|cores| {
        for core in cores.iter().filter_map(Weak::upgrade) {
            if let Ok(mut core) = core.try_borrow_mut() {
                core.leave_to_parent();
            }
        }
    });
}

fn watch_forks(core: &Rc<RefCell<ReactorCore>>) {
    static HANDLER: Once = Once::new();
    // SAFETY: the handler runs on the forking thread and uses only that thread's memory.
    HANDLER.call_once(|| unsafe {
        libc::pthread_atfork(None, None, Some(after_fork));
    });
    CORES.with_borrow_mut(|cores| cores.push(Rc::downgrade(core)));
}

/// Proactor of one thread; see the crate's documentation.
pub struct Reactor {
    core: Rc<RefCell<ReactorCore>>,
    wake: Arc<OwnedFd>,
    backend: Backend,
    features: Features,
    fallback_reason: Option<String>,
}

debug_fields!(Reactor, backend, features, fallback_reason);

fn remedy(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        // `ENOMEM` can mean that the limit on locked memory is reached, because the kernel counts a
        // ring's memory against that limit.
        Some(libc::ENOMEM) => "; raise the limit on locked memory (RLIMIT_MEMLOCK), or use epoll",
        _ => "",
    }
}

impl Reactor {
    /// Creates a reactor for the calling thread.
    ///
    /// # Errors
    ///
    /// Returns an error if `Backend::Uring` is requested but io_uring is refused (the message has
    /// the reason), or if no file descriptor is left.
    pub fn new(config: Config) -> Result<Reactor, io::Error> {
        let hub = ReactorState::new()?;
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
            Engine::Uring(uring) => (Backend::Uring, uring.features),
            _ => (Backend::Epoll, Features::default()),
        };
        let wake = Arc::clone(&hub.wake);
        let core = Rc::new(RefCell::new(ReactorCore { hub, engine }));
        watch_forks(&core);
        Ok(Reactor { core, wake, backend, features, fallback_reason })
    }

    /// Returns the back end in use, `Uring` or `Epoll`.
    pub fn backend(&self) -> Backend {
        self.backend
    }

    /// Returns the reason why io_uring is not used, or `None` if it is used or was not tried.
    pub fn fallback_reason(&self) -> Option<&str> {
        self.fallback_reason.as_deref()
    }

    /// Returns the optional kernel features in use.
    pub fn features(&self) -> Features {
        self.features
    }

    /// Returns a handle for pushing operations and taking completions. Clones are cheap.
    pub fn handle(&self) -> Handle {
        Handle { core: Rc::clone(&self.core) }
    }

    /// Returns the eventfd that ends a blocked call of [`Reactor::turn`]. Any thread may write the
    /// `u64` 1 to the eventfd.
    pub fn wake_fd(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.wake)
    }

    /// Submits all pushed operations, waits as requested unless an operation has completed already,
    /// and moves completions to the inboxes. Returns the number of completions; wake-ups and an
    /// expired `Wait::Until` count as 0. May return 0 early (signal, internal completion).
    ///
    /// # Errors
    ///
    /// Returns an error only if the ring or the epoll instance itself fails. Failures of operations
    /// are in their completions.
    pub fn turn(&mut self, wait: Wait) -> Result<usize, io::Error> {
        self.core.borrow_mut().turn(wait)
    }

    /// Returns the reactor's counters.
    pub fn counters(&self) -> Counters {
        self.core.borrow().hub.counters
    }
}

impl Drop for Reactor {
    /// Cancels all operations and waits up to 5 s for those that the kernel still executes. If an
    /// operation is left even then, the ring is leaked, because the kernel still uses the ring's
    /// memory. The owner of such an operation must not free the operation's memory either.
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

/// Handle to a reactor, for pushing operations and taking completions on the reactor's thread.
#[derive(Clone)]
pub struct Handle {
    core: Rc<RefCell<ReactorCore>>,
}

debug_fields!(Handle);

impl Handle {
    /// Runs one event-loop iteration, as [`Reactor::turn`] does, for code without access to the
    /// reactor itself, such as a channel that waits or is being dropped.
    ///
    /// # Errors
    ///
    /// Returns an error in the same cases as [`Reactor::turn`].
    pub fn turn(&self, wait: Wait) -> Result<usize, io::Error> {
        self.core.borrow_mut().turn(wait)
    }

    /// Opens a source, which is an inbox for completions. The numbers of released sources are
    /// reused.
    ///
    /// # Panics
    ///
    /// Panics if 65536 sources are open already.
    pub fn source(&self) -> Source {
        self.core.borrow_mut().hub.table.open()
    }

    /// Closes a source (an inbox for completions). All its completions are dropped, even later
    /// ones; a connection accepted for the source is closed. Operations in flight are not
    /// cancelled, and their memory must stay valid until they complete.
    pub fn release(&self, source: Source) {
        self.core.borrow_mut().hub.release(source);
    }

    /// Queues an operation, which a later event-loop iteration ([`Reactor::turn`]) submits. The
    /// function never blocks and never fails: an error appears in the completion. If the submission
    /// queue is full, the function makes a system call.
    ///
    /// # Safety
    ///
    /// All memory named by `op` must stay valid, and unaliased as the operation requires, until its
    /// completion is taken. Descriptors must stay open until then.
    ///
    /// # Panics
    ///
    /// Panics if `source` was released, or `user_data` is 2^48 or more.
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

    /// Moves all completions of a source to the end of `into`, in order of arrival.
    pub fn take(&self, source: Source, into: &mut Vec<Completion>) {
        self.core.borrow_mut().hub.table.take(source, into);
    }

    /// Returns the number of a source's operations that have not completed.
    pub fn pending(&self, source: Source) -> usize {
        self.core.borrow().hub.table.pending(source)
    }

    /// Registers a file, so that the kernel need not take a reference for each operation. Returns
    /// `Raw(fd)` if there is no table or the table is full. The registration keeps the file open.
    pub fn register_file(&self, fd: RawFd) -> FileRef {
        self.with_tables(|tables, ring| tables.register_file(ring, fd)).unwrap_or(FileRef::Raw(fd))
    }

    /// Ends a file's registration. No operation on the file may be in flight. Does nothing for
    /// `FileRef::Raw`, which is not registered.
    pub fn unregister_file(&self, file: FileRef) {
        if let FileRef::Fixed(index) = file {
            self.with_tables(|tables, ring| tables.unregister_file(ring, index));
        }
    }

    /// Lends a memory region to the reactor, which registers the region in the kernel for
    /// fixed-buffer I/O.
    /// - The region is registered in pieces of `piece_bytes` bytes (at most 1 GiB). Reads and
    ///   writes name a piece by its index ([`Handle::fixed_buffer`]).
    /// - Registration stops at the first piece that the kernel refuses.
    /// - If the reactor cannot register buffers, no piece is registered.
    /// - A region may be lent several times.
    /// - The call blocks while the kernel allocates and clears memory that was not used yet. On
    ///   some machines, this takes seconds for each GiB.
    ///
    /// # Safety
    ///
    /// The region must stay mapped until [`Handle::take_back`] was called once for each call of
    /// `lend`, or until the reactor no longer exists.
    ///
    /// # Panics
    ///
    /// Panics if `piece_bytes` is 0.
    pub unsafe fn lend(&self, ptr: *mut u8, len: usize, piece_bytes: usize) {
        assert!(piece_bytes > 0, "piece_bytes must not be 0");
        let region = AddressRange { start: ptr as usize, len };
        // SAFETY: promised by the caller.
        self.with_tables(|tables, ring| unsafe { tables.lend(ring, region, piece_bytes) });
    }

    /// Takes back a memory region that was lent with [`Handle::lend`]. A region that was lent
    /// several times must be taken back several times. The last call ends the registration of the
    /// region.
    ///
    /// # Safety
    ///
    /// At the last call, no operation in the region may be in flight.
    pub unsafe fn take_back(&self, ptr: *mut u8, len: usize) {
        let region = AddressRange { start: ptr as usize, len };
        // SAFETY: promised by the caller.
        self.with_tables(|tables, ring| unsafe { tables.take_back(ring, region) });
    }

    /// Returns an error with which the kernel refused to register a part of a lent memory region
    /// ([`Handle::lend`]). Each error is returned once, and a region has at most one error.
    pub fn take_refusal(&self) -> Option<io::Error> {
        self.with_tables(|tables, _| tables.lent.take_refusal())?
    }

    /// Returns the index of the registered buffer that contains the whole range, if there is one.
    /// The call takes O(log n).
    pub fn fixed_buffer(&self, ptr: *const u8, len: usize) -> Option<u16> {
        self.with_tables(|tables, _| tables.lent.find(ptr as usize, len))?
    }

    /// Returns the index of the registered region that contains all these segments, if the kernel
    /// supports vectored I/O on registered buffers (Linux 6.15).
    pub fn fixed_vector(&self, pieces: &[libc::iovec]) -> Option<u16> {
        self.with_tables(|tables, _| {
            if !tables.takes_vectors {
                return None;
            }
            let mut all =
                pieces.iter().map(|piece| tables.lent.find(piece.iov_base as usize, piece.iov_len));
            let first = all.next()??;
            all.all(|index| index == Some(first)).then_some(first)
        })?
    }

    /// Makes sure that a thread is available for the file operations of a source (a file or drive)
    /// that block. The return value says if this thread is a kernel worker of the ring or a thread
    /// of the pool. Without this call, a file with operations that hang could occupy all threads of
    /// the ring. May wait for a thread to start.
    ///
    /// `share` limits the number of pool threads that one drive occupies. All sources of the drive
    /// must pass the same share.
    ///
    /// # Errors
    ///
    /// Returns an error if the system refuses to start a thread. The error text names the limits
    /// that may be the reason.
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

    /// Runs `f` on the ring's tables of registered files and buffers. Returns `None` if there is no
    /// ring.
    fn with_tables<R>(
        &self,
        f: impl FnOnce(&mut RegisteredTables, &Submitter<'_>) -> R,
    ) -> Option<R> {
        match &mut self.core.borrow_mut().engine {
            Engine::Uring(uring) => Some(f(&mut uring.tables, &uring.ring.submitter())),
            _ => None,
        }
    }
}
