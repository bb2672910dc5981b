//! `ControlThread`: one thread of a Ceph drive, for every call that may wait for the cluster.
//!
//! Looks at the image while the drive is open, answers questions about its holes, and closes it at
//! the end, so that closing needs no new thread. A look opens the image once more, by its own name,
//! and compares it with the image that the drive has open: librbd gives the bytes of the living
//! image for a snapshot that was removed, zeroes for an image that was, and the parent's bytes for
//! a clone that was flattened while it was open without a watch. Looks come with every change that
//! librbd hears of, whose author waits for the look, and every few seconds. Called by rbd.rs and
//! map.rs; the thread ends with its drive. Invariant: the thread keeps no share of the image after
//! `ControlThread::end_looks`, so that the drive's end is the image's.

use std::io;
use std::ops::Range;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use millrace_block::{Error, ErrorKind};
use millrace_machine::{Deadline, Machine, Native};

use super::image::Image;
use super::{HeldImage, RbdState};
use crate::common::units::size_text;

/// Time between two looks at an image without a watch, whose changes nobody tells.
pub(crate) const UNWATCHED_PERIOD: Duration = Duration::from_secs(2);
/// Time between two looks at an image with a watch, which may have been lost.
const WATCHED_PERIOD: Duration = Duration::from_secs(10);
/// Longest time that the author of a change waits for the look.
const UPDATE_PATIENCE: Duration = Duration::from_secs(1);
/// How long the ends of all drives together wait for clusters that do not answer.
const CLOSE_PATIENCE: Duration = Duration::from_secs(10);
/// `RBD_FEATURE_EXCLUSIVE_LOCK`.
pub(super) const EXCLUSIVE_LOCK: u64 = 1 << 2;

/// What is left of [`CLOSE_PATIENCE`]; whole again once a cluster has answered.
static PATIENCE: Mutex<Duration> = Mutex::new(CLOSE_PATIENCE);

/// Ranges of data, in order; none if that is not known.
pub(super) type Data = Option<Vec<Range<u64>>>;

/// What the thread is asked for.
pub(super) enum Order {
    /// Look at the image; gives its size in bytes.
    Look(Sender<Result<u64, Error>>),
    /// Say where the image has data.
    Data(Range<u64>, Sender<Data>),
    /// Let go of the image.
    EndLooks(Sender<()>),
    /// Close the image.
    Close(Box<Image>, Option<HeldImage>, Sender<()>),
}

/// What an image was when the drive was opened, as far as a change of it makes answers wrong.
#[derive(Debug, Clone)]
pub(crate) struct KnownImage {
    /// The image's own name, which a rename leaves alone.
    pub(crate) id: String,
    pub(crate) snapshot_id: u64,
    /// Bytes that a parent image has for it.
    pub(crate) overlap_bytes: u64,
    /// The drive has taken the exclusive lock.
    pub(crate) is_locked: bool,
}

/// The way to the thread.
pub(super) struct ControlThread(Sender<Order>);

impl ControlThread {
    /// Starts the thread of an open image.
    pub(super) fn start(shared: &Arc<RbdState>) -> ControlThread {
        let (sender, orders) = mpsc::channel();
        let theirs = Arc::downgrade(shared);
        let is_told = {
            let sender = sender.clone();
            // Without calls the image is looked at as one without a watch.
            shared.image.is_watched()
                && shared.image.on_update(Box::new(move || wait_for_look(&sender))).is_ok()
        };
        let period = if is_told { WATCHED_PERIOD } else { UNWATCHED_PERIOD };
        let _detached =
            Native::spawn("millrace-rbd", None, Box::new(move || run(theirs, &orders, period)));
        shared.image.close_on(&sender);
        ControlThread(sender)
    }

    /// Has the image looked at; the answer may take as long as the cluster likes.
    pub(super) fn look(&self) -> Receiver<Result<u64, Error>> {
        let (sender, receiver) = mpsc::channel();
        // Without the thread there is no answer, which the receiver says.
        let _ = self.0.send(Order::Look(sender));
        receiver
    }

    /// Asks where the image has data; the answer may take as long as the cluster likes.
    pub(super) fn data(&self, range: Range<u64>) -> Receiver<Data> {
        let (sender, receiver) = mpsc::channel();
        let _ = self.0.send(Order::Data(range, sender));
        receiver
    }

    /// Waits until no look is under way; none begins after it.
    pub(super) fn end_looks(&self) {
        let (sender, receiver) = mpsc::channel();
        let _ = self.0.send(Order::EndLooks(sender));
        wait_for_end(&receiver);
    }
}

/// Waits for the end of something at a drive's end, as long as there is patience.
pub(super) fn wait_for_end(ended: &Receiver<()>) {
    let patience = || PATIENCE.lock().unwrap_or_else(PoisonError::into_inner);
    let mut limit = Deadline::<Native>::after(*patience());
    let has_ended = limit.receive(ended).is_some();
    // Without an answer, there is no such thread if time is left.
    *patience() = match !has_ended && limit.is_over() {
        true => Duration::ZERO,
        false => CLOSE_PATIENCE,
    };
}

/// Called by a thread of librbd when the image has changed.
fn wait_for_look(orders: &Sender<Order>) {
    let (sender, receiver) = mpsc::channel();
    if orders.send(Order::Look(sender)).is_ok() {
        // Late or never: the look comes by and by.
        let _ = receiver.recv_timeout(UPDATE_PATIENCE);
    }
}

/// The thread.
fn run(mut shared: Weak<RbdState>, orders: &Receiver<Order>, period: Duration) {
    loop {
        // Answers go to askers that may be gone.
        match orders.recv_timeout(period) {
            Ok(Order::Look(asker)) => {
                let _ = asker.send(shared.upgrade().map_or_else(|| Err(closed()), |it| it.look()));
            }
            Ok(Order::Data(range, asker)) => {
                let _ = asker.send(shared.upgrade().and_then(|shared| shared.data(range)));
            }
            Ok(Order::EndLooks(asker)) => {
                shared = Weak::new();
                let _ = asker.send(());
            }
            Ok(Order::Close(image, held, asker)) => {
                drop(image);
                drop(held);
                let _ = asker.send(());
                return;
            }
            Err(RecvTimeoutError::Timeout) => {
                if let Some(shared) = shared.upgrade() {
                    // The next one may succeed; what is wrong with the image is told by the look.
                    let _ = shared.look();
                }
            }
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

fn closed() -> Error {
    Error::new(ErrorKind::System, "the drive is closed")
}

/// An image as it is in the cluster now.
struct CurrentImage {
    size_bytes: u64,
    overlap_bytes: u64,
    features: u64,
}

/// Why a look found no image.
enum LookError {
    /// The image, or what the drive serves of it, is gone.
    Gone(&'static str),
    System(io::Error),
}

impl From<io::Error> for LookError {
    fn from(error: io::Error) -> LookError {
        LookError::System(error)
    }
}

/// An errno of a look, where ENOENT means that something is gone.
fn gone_or(error: io::Error, what: &'static str) -> LookError {
    match error.raw_os_error() {
        Some(libc::ENOENT) => LookError::Gone(what),
        _ => LookError::System(error),
    }
}

impl RbdState {
    /// Compares the image in the cluster with the one that is open; its size in bytes.
    ///
    /// # Errors
    /// If the cluster does not say it, or the drive cannot go on.
    fn look(&self) -> Result<u64, Error> {
        let error = |text: &str| Error::new(ErrorKind::System, format!("{}: {text}", self.name));
        if self.has_failed() {
            return Err(error("the drive has failed; restart millrace"));
        }
        let found = self.found().map_err(|why| match why {
            LookError::Gone(what) => {
                self.fail(&format!("{what}, so all I/O fails"));
                error(what)
            }
            LookError::System(why) => {
                self.tell(why.raw_os_error().unwrap_or(0));
                error(&format!("its header: {why}"))
            }
        })?;
        let CurrentImage { size_bytes, overlap_bytes, features } = found;
        let known = &self.known;
        if known.is_locked && features & EXCLUSIVE_LOCK == 0 {
            self.fail(
                "its exclusive lock is gone, as somebody disabled the feature exclusive-lock (rbd \
                 feature disable): other clients may write, so all I/O fails; rbd feature enable \
                 gives the lock back",
            );
        } else if !self.image.is_watched() && overlap_bytes < known.overlap_bytes.min(size_bytes) {
            self.fail(
                "the image was flattened, which a user who may only read is not told in time, so \
                 all I/O fails; with the profile rbd for the pool that user would be told",
            );
        } else {
            self.shrink(size_bytes);
        }
        Ok(size_bytes)
    }

    /// The image as it is in the cluster now. The open handle is not asked: it may wait for the
    /// end of a change which itself waits for this look.
    fn found(&self) -> Result<CurrentImage, LookError> {
        let opened = Image::open_by_id(&self.image.cluster, &self.known.id);
        let now = opened.map_err(|error| gone_or(error, "the image was removed (rbd rm)"))?;
        let set = now.set_snapshot(self.known.snapshot_id);
        set.map_err(|error| gone_or(error, "the snapshot was removed (rbd snap rm)"))?;
        Ok(CurrentImage {
            size_bytes: now.info()?.size_bytes,
            overlap_bytes: now.overlap()?,
            features: now.features()?,
        })
    }

    /// Has I/O behind the new end fail, if the image is smaller than it was.
    fn shrink(&self, size_bytes: u64) {
        let before = self.size_bytes();
        // A limit of 0 is a drive that has failed.
        if size_bytes < before && self.limit(size_bytes.max(1)) {
            let (before, now) = (size_text(before), size_text(size_bytes));
            self.say(&format!(
                "the image was shrunk from {before} to {now}: behind that, writes fail with `no \
                 space` and reads with `I/O error`; enlarge it again (rbd resize) and run millrace \
                 ctl resize, or restart millrace to serve the smaller image"
            ));
        }
    }
}
