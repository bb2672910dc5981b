//! `Channel`: a thread's queue pair to a volume, with the ring that file drives need.
//!
//! Some drives (files, NBD exports, Ceph images) and caches need a ring on each submitting thread.
//! A thread's channels to volumes with such drives share the I/O context of the thread, which
//! contains the ring. The first of these channels creates the context, and the last one drops it.
//!
//! The first such channel to a volume also claims a queue of each of the volume's drives for the
//! thread. After the thread's last channel to the volume, other threads can claim these queues.

use std::cell::RefCell;
use std::fmt;
use std::mem::ManuallyDrop;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use millrace_block::{
    AfterCompletion, Bio, ChannelConfig, Completion, Error, ErrorKind, GroupId, QueueKind,
    Rejected, Status,
};
use millrace_machine::Native;
use millrace_runtime::{IoConfig, IoContext, current_reactor};

use crate::groups::group_of;
use crate::{ThreadChannel, Volume};

/// A thread's queue pair to a volume: submits bios and reaps their completions.
///
/// A channel must stay on the thread that opened it, because `poll` and `wait` run the ring of that
/// thread. A drive such as a file drive has one queue for each submitting thread;
/// [`VolumeOptions::io_threads`](crate::VolumeOptions::io_threads) sets the number of queues. A
/// channel may be stored in a `thread_local!`. At the end of the thread, the channel is dropped and
/// waits for its I/O in flight, at most for the time of [`Channel::set_drain_timeout`].
///
/// # Example
///
/// ```
/// use millrace::{Bio, Buffer, Channel, ChannelConfig, Layout, VolumeOptions, build_volume};
///
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("disk.img").display().to_string();
/// let drive = format!("file:path={path},size=1m").parse()?;
/// let (volume, _notes) =
///     build_volume("files", Layout::Linear, &[drive], &VolumeOptions::default())?;
/// let mut channel = Channel::open(&volume, ChannelConfig::default())?;
/// channel.submit(Bio::write(0, Buffer::new(4096)))?;
/// channel.wait(1, |completion| assert!(completion.status.is_ok()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Channel {
    // The channel must be dropped before `claim`: dropping the channel waits for I/O through the
    // thread's ring, and `claim` keeps the ring alive.
    inner: ThreadChannel,
    claim: Option<Rc<QueueClaim>>,
    /// Group to which bios without a group are accounted.
    group: GroupId,
}

struct QueueClaim {
    context: Rc<RefCell<IoContext>>,
    volume: Arc<Volume>,
}

impl Drop for QueueClaim {
    fn drop(&mut self) {
        self.context.borrow_mut().leave(&self.volume);
        CLAIMS.with_borrow_mut(|claims| claims.forget(self));
    }
}

struct ThreadClaims {
    context: Weak<RefCell<IoContext>>,
    claims: Vec<Weak<QueueClaim>>,
}

impl ThreadClaims {
    const NONE: ThreadClaims = ThreadClaims { context: Weak::new(), claims: Vec::new() };
}

thread_local! {
    /// Queue claims of the current thread, one for each volume to which the thread has channels. A
    /// claim makes the thread the owner of a queue of each of the volume's drives. The variable has
    /// no destructor, so that it outlives channels in other thread-local variables. Dropping the
    /// last claim frees the memory.
    static CLAIMS: RefCell<ManuallyDrop<ThreadClaims>> =
        const { RefCell::new(ManuallyDrop::new(ThreadClaims::NONE)) };
}

impl ThreadClaims {
    fn forget(&mut self, claim: &QueueClaim) {
        self.claims.retain(|known| !std::ptr::eq(known.as_ptr(), claim));
        if self.claims.is_empty() {
            *self = ThreadClaims::NONE;
        }
    }

    fn claim(&mut self, volume: &Arc<Volume>) -> Result<Rc<QueueClaim>, Error> {
        let mut claims = self.claims.iter().filter_map(Weak::upgrade);
        if let Some(claim) = claims.find(|claim| Arc::ptr_eq(&claim.volume, volume)) {
            return Ok(claim);
        }
        let context = match self.context.upgrade() {
            Some(context) => context,
            None if current_reactor().is_some() => {
                let text = format!(
                    "volume {}: this thread has an IoContext of the program's own; open the \
                     channel with its method `channel`",
                    volume.name()
                );
                return Err(Error::new(ErrorKind::Busy, text));
            }
            None => Rc::new(RefCell::new(IoContext::new(IoConfig::default())?)),
        };
        context.borrow_mut().join(volume)?;
        let claim =
            Rc::new(QueueClaim { context: Rc::clone(&context), volume: Arc::clone(volume) });
        self.context = Rc::downgrade(&context);
        self.claims.push(Rc::downgrade(&claim));
        Ok(claim)
    }
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.inner, f)
    }
}

impl Channel {
    /// Opens a channel of the calling thread to a volume. Drives such as file drives need a ring on
    /// each submitting thread. For such drives, the thread gets a ring and a queue of each drive,
    /// and keeps both until its last channel to the volume is dropped.
    ///
    /// # Errors
    /// Returns `Busy` if the drives have no queue left for another thread, or if the thread has an
    /// [`IoContext`] of the program's own; `System` if no ring can be made or no file descriptor
    /// is free; or the error of opening a queue.
    ///
    /// # Panics
    /// Panics if the depth is not 1 to 65,536.
    pub fn open(volume: &Arc<Volume>, config: ChannelConfig<Native>) -> Result<Channel, Error> {
        let of_threads = volume.disks().iter().any(|disk| disk.kind() == QueueKind::OwnerOnly);
        if !of_threads || config.thread.is_some() {
            let inner = ThreadChannel::open(volume, config)?;
            return Ok(Channel { inner, claim: None, group: GroupId::DEFAULT });
        }
        let claim = CLAIMS.with_borrow_mut(|claims| claims.claim(volume))?;
        let inner = claim.context.borrow_mut().channel(volume, config.depth, config.stamp)?;
        Ok(Channel { inner, claim: Some(claim), group: GroupId::DEFAULT })
    }

    /// Sets the group for bios that name no group. `name` is the name of the group.
    ///
    /// # Errors
    /// Returns `InvalidSetting` if the volume's drives have no such group.
    pub fn with_group(mut self, name: &str) -> Result<Channel, Error> {
        self.group = group_of(self.volume(), name)?;
        Ok(self)
    }

    /// Sets the group for bios that name no group. Bios that were already submitted are not
    /// affected.
    pub fn set_group(&mut self, group: GroupId) {
        self.group = group;
    }

    /// Returns the volume.
    #[must_use]
    pub fn volume(&self) -> &Arc<Volume> {
        self.inner.volume()
    }

    /// Returns the number of bios that were accepted and not yet handed back.
    #[must_use]
    pub fn in_flight(&self) -> u32 {
        self.inner.in_flight()
    }

    /// Returns true if the channel accepts no more bios of its group until some have completed.
    pub(crate) fn is_throttled(&self) -> bool {
        self.inner.is_throttled(self.group)
    }

    /// Accepts a bio, which starts at the next `flush`, `poll` or `wait`, or when a batch is full.
    ///
    /// # Errors
    /// Returns the bio if the channel is full or the bio is invalid.
    #[doc(alias = "submit_bio")]
    #[inline]
    pub fn submit(&mut self, mut bio: Bio) -> Result<(), Rejected> {
        if self.group != GroupId::DEFAULT && bio.group() == GroupId::DEFAULT {
            bio = bio.with_group(self.group);
        }
        self.inner.submit(bio)
    }

    /// Starts all submitted bios.
    ///
    /// # Panics
    /// Panics as [`Channel::wait`] does.
    #[doc(alias = "blk_finish_plug")]
    #[inline]
    pub fn flush(&mut self) {
        self.inner.flush();
        self.turn();
    }

    /// Starts submitted bios, and passes each completed one to `take`. Does not wait. Returns the
    /// number of completed bios.
    ///
    /// # Panics
    /// Panics as [`Channel::wait`] does.
    #[inline]
    pub fn poll(&mut self, take: impl FnMut(Completion)) -> usize {
        self.flush();
        self.inner.poll(take)
    }

    /// Polls as [`Channel::poll`] does, for a program that reuses the same buffers: `next` receives
    /// a reference to each completed bio, and decides if the channel resubmits or drops the bio. A
    /// resubmitted bio that is invalid completes at once with the reason as its status.
    ///
    /// # Panics
    /// Panics as [`Channel::wait`] does.
    #[inline]
    pub fn poll_again(&mut self, next: impl FnMut(&mut Bio, Status) -> AfterCompletion) -> usize {
        self.flush();
        self.inner.poll_again(next)
    }

    /// Waits until at least `min` bios, or all in flight if fewer, were passed to `take`. Returns
    /// the number of completed bios.
    ///
    /// # Panics
    /// Panics if the thread's ring fails, which loses all submitted I/O.
    pub fn wait(&mut self, min: usize, take: impl FnMut(Completion)) -> usize {
        self.inner.wait(min, take)
    }

    /// Fails requests that have timed out. `wait` does this by itself. A program that only polls
    /// should call this whenever a poll finds nothing; the call is cheap. A gap of more than a
    /// quarter of the timeout between two calls is taken for a pause of the process, in which no
    /// request can time out.
    pub fn tick(&mut self) {
        self.inner.tick();
    }

    /// Sets the longest time that dropping the channel waits for I/O in flight, before it leaks
    /// their buffers; 5 s by default.
    pub fn set_drain_timeout(&mut self, timeout: Duration) {
        self.inner.set_drain_timeout(timeout);
    }

    #[inline]
    fn turn(&mut self) {
        if let Some(claim) = &self.claim {
            let turned = claim.context.borrow_mut().turn(None, || true);
            turned.expect("the ring works");
        }
    }
}
