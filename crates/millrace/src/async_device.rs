//! `AsyncDevice`: a volume for async programs, with futures that work on any thread and any
//! runtime.
//!
//! `AsyncDevice` owns a thread (`millrace-async`) with an I/O ring and a channel, the interface
//! through which one thread submits bios. Tasks move between threads, but a channel cannot. So a
//! task sends its bio to the thread, which submits the bio and calls the task's waker once the bio
//! completes. If the channel is full, bios wait in order of arrival. No lock is held while a waker
//! is called.

use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use millrace_block::{
    Bio, Buffer, Completion, Error, ErrorKind, GroupId, Layout, Op, Reject, SECTOR_SHIFT, Stamp,
    Status,
};
use millrace_machine::{Doorbell, Machine, Native, Thread, debug_fields, lock_unpoisoned};
use millrace_runtime::{IoConfig, IoContext};

use crate::block_device::check_range;
use crate::config::StartError;
use crate::groups::group_of;
use crate::io_error::IoRange;
use crate::stripe::STRIPED;
use crate::{ThreadChannel, Volume, stripe};

/// Maximum number of bios in flight.
const DEPTH: u32 = 256;
const BUFFER_MAX_BYTES: usize = 1 << 30;

/// A volume for async programs.
///
/// Dropping it waits until all I/O in flight has ended: until a drive answers or its timeout, 30 s
/// by default, expires. Drop it only where the thread may block, such as a thread that the runtime
/// has for blocking calls.
///
/// # Example
///
/// ```
/// # fn block_on<T>(future: impl Future<Output = T>) -> T {
/// #     struct Unpark(std::thread::Thread);
/// #     impl std::task::Wake for Unpark {
/// #         fn wake(self: std::sync::Arc<Self>) { self.0.unpark(); }
/// #     }
/// #     let waker = std::sync::Arc::new(Unpark(std::thread::current())).into();
/// #     let mut context = std::task::Context::from_waker(&waker);
/// #     let mut future = std::pin::pin!(future);
/// #     loop {
/// #         if let std::task::Poll::Ready(value) = future.as_mut().poll(&mut context) {
/// #             return value;
/// #         }
/// #         std::thread::park();
/// #     }
/// # }
/// use millrace::{AsyncDevice, Buffer};
///
/// let disk = AsyncDevice::stripe(&["ram:size=1m", "ram:size=1m"])?;
/// let read = block_on(async {
///     let mut buffer = Buffer::new(4096);
///     buffer.fill(7);
///     disk.write(0, buffer).await?;
///     disk.flush().await?;
///     disk.read(0, 4096).await
/// })?;
/// assert_eq!(&read[..], [7; 4096]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct AsyncDevice {
    volume: Arc<Volume>,
    /// Queue of bios to the device's thread. `None` only while the device is dropped.
    bios: Option<Sender<QueuedBio>>,
    bell: Arc<Doorbell<Native>>,
    thread: Option<<Native as Machine>::Thread>,
    warnings: Vec<String>,
    /// Group to which bios without a group are accounted.
    group: GroupId,
}

struct QueuedBio {
    bio: Bio,
    answer: Promise,
}

/// Completes a bio's future. Dropping a promise completes the future with `Aborted`.
struct Promise {
    /// State shared with the future. `None` once the future is complete.
    answer: Option<Arc<Mutex<Progress>>>,
    user_data: u64,
}

#[derive(Default)]
struct Progress {
    completion: Option<Completion>,
    waker: Option<Waker>,
}

impl Promise {
    fn keep(&mut self, completion: Completion) {
        let Some(answer) = self.answer.take() else { return };
        let mut progress = lock_unpoisoned(&answer);
        progress.completion = Some(Completion { user_data: self.user_data, ..completion });
        let waker = progress.waker.take();
        drop(progress);
        if let Some(waker) = waker {
            // A panic in one task's waker must not affect other tasks.
            let _ = catch_unwind(AssertUnwindSafe(|| waker.wake()));
        }
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        if self.answer.is_some() {
            let (status, bio) = (Status::Aborted, Bio::flush());
            self.keep(Completion { user_data: 0, status, bio, q_ns: 0, c_ns: 0 });
        }
    }
}

fn promised(bio: Bio) -> (Pending, QueuedBio) {
    let pending = Pending(Arc::default());
    let answer = Promise { answer: Some(Arc::clone(&pending.0)), user_data: bio.user_data() };
    (pending, QueuedBio { bio, answer })
}

/// A submitted bio. Dropping this future does not cancel the bio.
#[must_use = "the outcome of the I/O is lost unless this is awaited"]
pub struct Pending(Arc<Mutex<Progress>>);

impl Future for Pending {
    type Output = Completion;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Completion> {
        let mut progress = lock_unpoisoned(&self.0);
        match progress.completion.take() {
            Some(completion) => Poll::Ready(completion),
            None => {
                progress.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

debug_fields!(AsyncDevice, volume);
debug_fields!(Pending);

impl AsyncDevice {
    /// Starts a thread with a ring for the volume. Others may use the volume at the same time.
    ///
    /// # Errors
    /// Returns `Busy` if the volume's drives have no queue left for another thread, `System` if no
    /// ring can be made, or the error of opening a queue.
    pub fn start(volume: &Arc<Volume>) -> Result<AsyncDevice, Error> {
        let ((bios, inbox), (up, ups)) = (channel(), channel());
        let of_thread = Arc::clone(volume);
        let body = move || run(&of_thread, inbox, up);
        let thread = Native::try_spawn("millrace-async", None, body)
            .map_err(|error| Error::new(ErrorKind::System, error.to_string()))?;
        let died = |_| Error::new(ErrorKind::System, "the device's thread panicked");
        Ok(AsyncDevice {
            bell: ups.recv().map_err(died)??,
            volume: Arc::clone(volume),
            bios: Some(bios),
            thread: Some(thread),
            warnings: Vec::new(),
            group: GroupId::DEFAULT,
        })
    }

    /// Opens drives, written as specs (`ram:size=1g`, `file:path=/x/d0`), makes a volume of them as
    /// [`BlockDevice::stripe`](crate::BlockDevice::stripe) does, and starts a thread with a ring
    /// for it. [`Spec`](crate::Spec) has a table of all drivers and keys. Blocks while files are
    /// opened, up to three seconds if another process has locked one.
    ///
    /// # Errors
    /// Fails if a spec is invalid, a drive cannot be opened, or no ring can be created. Files that
    /// this call created are removed.
    pub fn stripe(specs: &[impl AsRef<str>]) -> Result<AsyncDevice, StartError> {
        AsyncDevice::over(STRIPED, specs)
    }

    /// Opens drives as [`AsyncDevice::stripe`] does, but as a linear volume: one drive after the
    /// other.
    ///
    /// # Errors
    /// Fails as [`AsyncDevice::stripe`] does.
    pub fn linear(specs: &[impl AsRef<str>]) -> Result<AsyncDevice, StartError> {
        AsyncDevice::over(Layout::Linear, specs)
    }

    /// Opens one drive as [`AsyncDevice::linear`] does.
    ///
    /// # Errors
    /// Fails as [`AsyncDevice::stripe`] does.
    pub fn open_drive(spec: impl AsRef<str>) -> Result<AsyncDevice, StartError> {
        AsyncDevice::linear(&[spec])
    }

    fn over(layout: Layout, specs: &[impl AsRef<str>]) -> Result<AsyncDevice, StartError> {
        let (mut device, warnings) = stripe::open(layout, specs, AsyncDevice::start)?;
        device.warnings = warnings;
        Ok(device)
    }

    /// Returns remarks about the drives that were opened: a file holds an image format that writes
    /// would destroy, or a part of a drive is unused.
    #[must_use]
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Accounts this device's I/O to the group `name`.
    ///
    /// # Errors
    /// Returns `InvalidSetting` if the volume's drives have no such group.
    pub fn with_group(mut self, name: &str) -> Result<AsyncDevice, Error> {
        self.group = group_of(&self.volume, name)?;
        Ok(self)
    }

    /// Returns the volume.
    #[must_use]
    pub fn volume(&self) -> &Arc<Volume> {
        &self.volume
    }

    /// Returns the current size in bytes.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.volume.capacity() << SECTOR_SHIFT
    }

    /// Returns the logical block size in bytes. Offsets and lengths must be multiples of it.
    #[must_use]
    pub fn block_bytes(&self) -> u32 {
        self.volume.limits().logical_block_size
    }

    /// Submits a bio, which runs whether or not the future is awaited. Unlike with
    /// [`AsyncDevice::write`], the completion returns the buffer also if the I/O failed. The status
    /// is `Aborted` if the device's thread has ended because its ring failed or a driver panicked.
    pub fn submit(&self, mut bio: Bio) -> Pending {
        if bio.group() == GroupId::DEFAULT {
            bio = bio.with_group(self.group);
        }
        let (pending, queued) = promised(bio);
        // If the thread has ended, `send` returns the bio, and dropping the bio completes it with
        // `Aborted`.
        if self.bios.as_ref().is_some_and(|bios| bios.send(queued).is_ok()) {
            self.bell.ring();
        }
        pending
    }

    /// Reads `len_bytes` at `offset_bytes`, both multiples of the logical block.
    ///
    /// # Errors
    /// Returns `InvalidInput` for a range that is empty, longer than 1 GiB, does not consist of
    /// whole blocks or exceeds the device, and an [`IoError`](crate::IoError) if a drive failed.
    pub async fn read(&self, offset_bytes: u64, len_bytes: usize) -> io::Result<Buffer> {
        let sector = self.check(offset_bytes, len_bytes)?;
        let io = IoRange { op: Op::Read, offset_bytes, len_bytes: len_bytes as u64 };
        self.transfer(io, Bio::read(sector, Buffer::new(len_bytes))).await
    }

    /// Writes a buffer at `offset_bytes`, a multiple of the logical block. Returns the buffer. An
    /// error loses the buffer; use [`AsyncDevice::submit`] to get it back.
    ///
    /// # Errors
    /// Fails as [`AsyncDevice::read`] does.
    pub async fn write(&self, offset_bytes: u64, buffer: Buffer) -> io::Result<Buffer> {
        let sector = self.check(offset_bytes, buffer.len())?;
        let io = IoRange { op: Op::Write, offset_bytes, len_bytes: buffer.len() as u64 };
        self.transfer(io, Bio::write(sector, buffer)).await
    }

    async fn transfer(&self, io: IoRange, bio: Bio) -> io::Result<Buffer> {
        let done = self.submit(bio).await;
        io.outcome(&self.volume, done.status)?;
        done.bio.into_buffer().ok_or_else(|| io::ErrorKind::Other.into())
    }

    /// Checks that a bio can carry the range. Returns the range's first sector.
    fn check(&self, offset_bytes: u64, len_bytes: usize) -> io::Result<u64> {
        check_range(&self.volume, offset_bytes, len_bytes as u64)?;
        if !(1..=BUFFER_MAX_BYTES).contains(&len_bytes) {
            let name = self.volume.name();
            let text = format!(
                "volume {name}: cannot transfer {len_bytes} bytes at offset {offset_bytes}: a \
                 buffer must have 1 to {BUFFER_MAX_BYTES} bytes"
            );
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        Ok(offset_bytes >> SECTOR_SHIFT)
    }

    /// Makes all completed writes durable.
    ///
    /// # Errors
    /// Returns an [`IoError`](crate::IoError) if a drive failed.
    pub async fn flush(&self) -> io::Result<()> {
        self.run(IoRange::FLUSH).await
    }

    /// Writes zeroes. No data is sent to drives that support writing zeroes. `len_bytes` must be
    /// below 2 TiB.
    ///
    /// # Errors
    /// Returns `InvalidInput` if the range exceeds the device, is 2 TiB or longer, or does not
    /// consist of whole blocks. Returns an [`IoError`](crate::IoError) if a drive failed.
    pub async fn write_zeroes(&self, offset_bytes: u64, len_bytes: u64) -> io::Result<()> {
        self.clear(IoRange { op: Op::WriteZeroes, offset_bytes, len_bytes }).await
    }

    /// Discards a range. Its contents are unspecified afterwards. `len_bytes` must be below 2 TiB.
    ///
    /// # Errors
    /// Fails as [`AsyncDevice::write_zeroes`] does.
    pub async fn discard(&self, offset_bytes: u64, len_bytes: u64) -> io::Result<()> {
        self.clear(IoRange { op: Op::Discard, offset_bytes, len_bytes }).await
    }

    async fn clear(&self, io: IoRange) -> io::Result<()> {
        match check_range(&self.volume, io.offset_bytes, io.len_bytes)? {
            0 => Ok(()),
            _ => self.run(io).await,
        }
    }

    async fn run(&self, io: IoRange) -> io::Result<()> {
        io.outcome(&self.volume, self.submit(io.bio_without_data()).await.status)
    }
}

impl Drop for AsyncDevice {
    fn drop(&mut self) {
        self.bios = None;
        self.bell.ring();
        if let Some(thread) = self.thread.take() {
            thread.join();
        }
    }
}

/// Runs the device's thread. Sends its doorbell, or the error of its start, through `up`. When the
/// thread ends, even by a panic of a driver or waker, dropping `bios` completes all queued bios
/// with `Aborted`.
fn run(
    volume: &Arc<Volume>,
    bios: Receiver<QueuedBio>,
    up: Sender<Result<Arc<Doorbell<Native>>, Error>>,
) {
    let made = IoContext::new(IoConfig::default()).and_then(|mut io| {
        io.join(volume)?;
        let channel = io.channel(volume, DEPTH, Stamp::Batch)?;
        Ok((io, channel))
    });
    // Drop the channel before the ring: I/O in flight on the channel completes through the ring.
    let (mut io, channel) = match made {
        Ok(made) => made,
        Err(error) => {
            let _ = up.send(Err(error));
            return;
        }
    };
    let _ = up.send(Ok(Arc::clone(io.bell())));
    let mut work =
        SubmitState { channel, waiting: VecDeque::new(), promises: Vec::new(), free: Vec::new() };
    loop {
        let is_closed = loop {
            match bios.try_recv() {
                Ok(bio) => work.waiting.push_back(bio),
                Err(error) => break error == TryRecvError::Disconnected,
            }
        };
        work.turn();
        if is_closed && work.is_idle() {
            return;
        }
        let deadline_ns = work.channel.sleep_until();
        let mut arrived = || match bios.try_recv() {
            Ok(bio) => {
                work.waiting.push_back(bio);
                true
            }
            Err(error) => error == TryRecvError::Disconnected,
        };
        let has_work = || work.channel.has_work() || (!is_closed && arrived());
        if io.turn(deadline_ns, has_work).is_err() {
            // Leaving this function drops the promises of all bios in flight. A dropped promise
            // completes its bio with `Aborted`.
            return;
        }
        work.channel.tick();
    }
}

struct SubmitState {
    channel: ThreadChannel,
    waiting: VecDeque<QueuedBio>,
    /// Promises of the bios in flight. The index is the bio's user data in the channel.
    promises: Vec<Option<Promise>>,
    free: Vec<usize>,
}

impl SubmitState {
    fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.channel.in_flight() == 0
    }

    /// Submits waiting bios and reaps completions, until no bio waits or nothing completes. The
    /// loop is needed because a completion makes room for a waiting bio, and no later event would
    /// submit it.
    fn turn(&mut self) {
        loop {
            self.submit();
            if self.reap() == 0 || self.waiting.is_empty() {
                return;
            }
        }
    }

    fn submit(&mut self) {
        while let Some(QueuedBio { bio, mut answer }) = self.waiting.pop_front() {
            let number = self.free.pop().unwrap_or_else(|| {
                self.promises.push(None);
                self.promises.len() - 1
            });
            match self.channel.submit(bio.with_user_data(number as u64)) {
                Ok(()) => self.promises[number] = Some(answer),
                Err(rejected) => {
                    self.free.push(number);
                    let bio = rejected.bio.with_user_data(answer.user_data);
                    match rejected.reason {
                        Reject::Invalid(status) => {
                            answer.keep(Completion { user_data: 0, status, bio, q_ns: 0, c_ns: 0 });
                        }
                        Reject::Full => {
                            self.waiting.push_front(QueuedBio { bio, answer });
                            return;
                        }
                    }
                }
            }
        }
    }

    fn reap(&mut self) -> usize {
        let (promises, free) = (&mut self.promises, &mut self.free);
        self.channel.poll(|completion| {
            let number = completion.user_data as usize;
            free.push(number);
            if let Some(mut promise) = promises[number].take() {
                promise.keep(completion);
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use std::task::Wake;
    use std::thread::{self, Thread};

    use super::*;
    use crate::ConfigPart;
    struct Unpark(Thread);

    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        let waker = Arc::new(Unpark(thread::current())).into();
        let mut future = std::pin::pin!(future);
        loop {
            match future.as_mut().poll(&mut Context::from_waker(&waker)) {
                Poll::Ready(value) => return value,
                Poll::Pending => thread::park(),
            }
        }
    }

    fn device(specs: &[&str]) -> AsyncDevice {
        AsyncDevice::stripe(specs).unwrap()
    }

    #[test]
    fn excess_bios_of_a_channel_are_answered_with_their_numbers() {
        let disk = device(&["ram:size=8m", "ram:size=8m"]);
        let count = u64::from(DEPTH) * 3;
        let bio = |number| Bio::write(number * 8, Buffer::new(4096)).with_user_data(number);
        // The thread finds all of them at once.
        let (pending, queued): (Vec<Pending>, Vec<QueuedBio>) =
            (0..count).map(|number| promised(bio(number))).unzip();
        let bios = disk.bios.as_ref().unwrap();
        queued.into_iter().for_each(|bio| assert!(bios.send(bio).is_ok()));
        disk.bell.ring();
        for (number, pending) in (0..).zip(pending) {
            let done = block_on(pending);
            assert_eq!((done.user_data, done.status), (number, Status::Ok));
        }
    }

    #[test]
    fn a_file_is_written_and_read_from_several_threads() {
        let dir = tempfile::tempdir().unwrap();
        let spec = format!("file:path={}/d,size=4m", dir.path().display());
        let disk = device(&[&spec]);
        thread::scope(|scope| {
            for place in 0..4_u64 {
                let disk = &disk;
                scope.spawn(move || {
                    let mut buffer = Buffer::new(4096);
                    buffer.fill(place as u8 + 1);
                    block_on(disk.write(place << 20, buffer)).unwrap();
                    block_on(disk.flush()).unwrap();
                    let read = block_on(disk.read(place << 20, 4096)).unwrap();
                    assert!(read.iter().all(|byte| *byte == place as u8 + 1));
                });
            }
        });
    }

    #[test]
    fn stripe_has_size_block_and_zeroes_where_they_are_written() {
        let disk = device(&["ram:size=1m,block=4k", "ram:size=2m"]);
        assert_eq!((disk.size_bytes(), disk.block_bytes()), (2 << 20, 4096));
        assert!(disk.warnings()[0].contains("unused: 1 MiB"), "{:?}", disk.warnings());
        let mut buffer = Buffer::new(16_384);
        buffer.fill(7);
        block_on(disk.write(0, buffer)).unwrap();
        block_on(disk.write_zeroes(4096, 8192)).unwrap();
        block_on(disk.discard(1 << 20, 1 << 20)).unwrap();
        let read = block_on(disk.read(0, 16_384)).unwrap();
        let expected = [7, 0, 0, 7].map(|byte: u8| [byte; 4096]).concat();
        assert!(read[..] == expected[..]);
        block_on(disk.write_zeroes(0, 0)).unwrap();
        for len_bytes in [512, 4 << 20] {
            for done in
                [block_on(disk.write_zeroes(0, len_bytes)), block_on(disk.discard(0, len_bytes))]
            {
                assert_eq!(done.unwrap_err().kind(), io::ErrorKind::InvalidInput);
            }
        }
        let error = AsyncDevice::stripe(&["rom:"]).err().unwrap();
        assert_eq!(error.part, ConfigPart::Drive(0));
    }

    #[test]
    fn what_was_submitted_is_answered_although_device_is_dropped() {
        let disk = device(&["null:size=1m,delay=20ms"]);
        let pending = disk.submit(Bio::read(0, Buffer::new(4096)));
        drop(disk);
        assert_eq!(block_on(pending).status, Status::Ok);
    }

    #[test]
    fn what_can_never_be_served_is_answered_with_the_reason() {
        let disk = device(&["ram:size=1m"]);
        let behind_the_end =
            "volume stripe: 4096 bytes at 1048576 extend beyond its end at 1048576";
        let error = block_on(disk.read(1 << 20, 4096)).unwrap_err();
        assert_eq!(
            (error.kind(), error.to_string()),
            (io::ErrorKind::InvalidInput, behind_the_end.into())
        );
        for (offset_bytes, len_bytes) in [(1, 512), (0, 0), (0, 2 << 30), (u64::MAX - 511, 512)] {
            let error = block_on(disk.read(offset_bytes, len_bytes)).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{error}");
        }
        let direct = block_on(disk.submit(Bio::read(1 << 11, Buffer::new(4096))));
        assert_eq!(direct.status, Status::OutOfRange);
    }
}
