//! `Channel`: one thread's way into a volume, with the ring that file drives need.
//!
//! Owns a channel of the layer and, if a drive of the volume works through its users' rings, a
//! share in the calling thread's I/O context: made with the first such channel of the thread, gone
//! with the last. A volume's queues are claimed by the first channel of a thread on it and given
//! up with the last, for other threads. Called by programs; the binary's servers have contexts of
//! their own.

use std::cell::RefCell;
use std::fmt;
use std::mem::ManuallyDrop;
use std::rc::{Rc, Weak};
use std::sync::Arc;

use millrace_block::{
    Again, Bio, ChannelConfig, Completion, Error, ErrorKind, GroupId, QueueKind, Rejected, Status,
};
use millrace_machine::Native;
use millrace_runtime::{IoConfig, IoContext, current_reactor};

use crate::groups::group_of;
use crate::{ThreadChannel, Volume};

/// One thread's way into a volume.
///
/// It stays on the thread that opened it: a volume of file drives has a queue for each of as many
/// threads as its drives were opened for
/// ([`VolumeOptions::io_threads`](crate::VolumeOptions::io_threads)), and `poll` and `wait` turn
/// the thread's own ring. It may lie in a `thread_local!`, and ends its I/O with the thread.
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
/// let write = Bio::write(0, Buffer::new(4096));
/// channel.submit(write).map_err(|rejected| format!("{:?}", rejected.reason))?;
/// channel.wait(1, |completion| assert!(completion.status.is_ok()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Channel {
    // Before the claim: a channel that is dropped drains through the thread's ring.
    inner: ThreadChannel,
    claim: Option<Rc<Claim>>,
    /// Of bios that name none.
    group: GroupId,
}

/// The queues of a volume's drives that the calling thread owns.
struct Claim {
    context: Rc<RefCell<IoContext>>,
    volume: Arc<Volume>,
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.context.borrow_mut().leave(&self.volume);
        CLAIMS.with_borrow_mut(|claims| claims.forget(self));
    }
}

/// What the channels of the calling thread share: its ring, and its claims on volumes.
struct ThreadClaims {
    context: Weak<RefCell<IoContext>>,
    claims: Vec<Weak<Claim>>,
}

impl ThreadClaims {
    const NONE: ThreadClaims = ThreadClaims { context: Weak::new(), claims: Vec::new() };
}

thread_local! {
    /// Without a destructor, so that it outlives channels in other variables of its thread. The
    /// last claim to go takes along what is allocated.
    static CLAIMS: RefCell<ManuallyDrop<ThreadClaims>> =
        const { RefCell::new(ManuallyDrop::new(ThreadClaims::NONE)) };
}

impl ThreadClaims {
    /// A claim goes away.
    fn forget(&mut self, claim: &Claim) {
        self.claims.retain(|known| !std::ptr::eq(known.as_ptr(), claim));
        if self.claims.is_empty() {
            *self = ThreadClaims::NONE;
        }
    }

    /// The thread's claim on a volume, made if this is its first channel there.
    fn claim(&mut self, volume: &Arc<Volume>) -> Result<Rc<Claim>, Error> {
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
        let claim = Rc::new(Claim { context: Rc::clone(&context), volume: Arc::clone(volume) });
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
    /// A channel of the calling thread to a volume. If drives of it work through their users'
    /// rings, as files do, the thread gets a ring and a queue of each of them, which it keeps until
    /// its last channel to the volume is dropped.
    ///
    /// # Errors
    /// `Busy` if as many threads use the volume as its drives were opened for, or the thread has an
    /// [`IoContext`] of the program's own; `System` if no ring can be made; whatever opening a
    /// queue says.
    ///
    /// # Panics
    /// If the depth is not 1 to 65,536.
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

    /// Has bios that name no group count towards the group of this name.
    ///
    /// # Errors
    /// `InvalidSetting` if the volume's drives know no such group.
    pub fn with_group(mut self, name: &str) -> Result<Channel, Error> {
        self.group = group_of(self.volume(), name)?;
        Ok(self)
    }

    /// Has bios that name no group, and are submitted from now on, count towards this one.
    pub fn set_group(&mut self, group: GroupId) {
        self.group = group;
    }

    /// The volume.
    #[must_use]
    pub fn volume(&self) -> &Arc<Volume> {
        self.inner.volume()
    }

    /// Bios accepted and not yet handed back.
    #[must_use]
    pub fn in_flight(&self) -> u32 {
        self.inner.in_flight()
    }

    /// Whether the channel takes nothing of its group until some of that has completed.
    pub(crate) fn is_throttled(&self) -> bool {
        self.inner.is_throttled(self.group)
    }

    /// Accepts a bio; it starts at the next `flush`, `poll` or `wait`, or when enough have come.
    ///
    /// # Errors
    /// Gives the bio back if the channel is full or the bio can never be served.
    #[inline]
    pub fn submit(&mut self, mut bio: Bio) -> Result<(), Rejected> {
        if self.group != GroupId::DEFAULT && bio.group() == GroupId::DEFAULT {
            bio = bio.with_group(self.group);
        }
        self.inner.submit(bio)
    }

    /// Starts all that was submitted.
    ///
    /// # Panics
    /// As [`Channel::wait`].
    #[inline]
    pub fn flush(&mut self) {
        self.inner.flush();
        self.turn();
    }

    /// Starts what was submitted, and hands each completed bio to `take`. Does not wait. Returns
    /// how many were handed over.
    ///
    /// # Panics
    /// As [`Channel::wait`].
    #[inline]
    pub fn poll(&mut self, take: impl FnMut(Completion)) -> usize {
        self.flush();
        self.inner.poll(take)
    }

    /// As [`Channel::poll`], for a program that streams I/O through the same memory: `next` sees
    /// each completed bio where it is, and sends it off again or has it dropped. A bio sent off
    /// that can never be served comes back at once with the reason as its status.
    ///
    /// # Panics
    /// As [`Channel::wait`].
    #[inline]
    pub fn poll_again(&mut self, next: impl FnMut(&mut Bio, Status) -> Again) -> usize {
        self.flush();
        self.inner.poll_again(next)
    }

    /// Waits until at least `min` bios (or all in flight, if fewer) were handed to `take`; returns
    /// how many were.
    ///
    /// # Panics
    /// If the thread's ring itself fails, which nothing that was submitted survives.
    pub fn wait(&mut self, min: usize, take: impl FnMut(Completion)) -> usize {
        self.inner.wait(min, take)
    }

    /// Fails requests that the drive has not answered in time; `wait` does so by itself. Programs
    /// that only poll call it whenever a poll finds nothing, which is cheap: time between two calls
    /// that are more than a quarter of the timeout apart counts as a pause of the process, in which
    /// no request can time out.
    pub fn tick(&mut self) {
        self.inner.tick();
    }

    /// Sets how long a drop waits for I/O in flight before it gives memory up for lost; 5 s unless
    /// set.
    pub fn set_drain_ns(&mut self, drain_ns: u64) {
        self.inner.set_drain_ns(drain_ns);
    }

    /// Has the thread's ring take what was started, and bring what is done.
    #[inline]
    fn turn(&mut self) {
        if let Some(claim) = &self.claim {
            let turned = claim.context.borrow_mut().turn(None, || true);
            turned.expect("the ring works");
        }
    }
}
