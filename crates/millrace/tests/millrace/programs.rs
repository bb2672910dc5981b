//! Programs on file volumes: the example, several threads, too many of them, rings of their own.
//!
//! Everything goes through the facade's `Channel`, as a program would. A wait that would hang fails
//! the test through `within`.

#[path = "../../examples/file_volume.rs"]
mod file_volume;

use std::path::Path;
use std::sync::{Arc, Barrier, mpsc};
use std::time::Duration;

use millrace::{
    Bio, BlockDevice, Buffer, Channel, ChannelConfig, ErrorKind, IoConfig, IoContext, Layout,
    STRIPE_THREADS, Stamp, ThreadChannel, Volume, VolumeOptions, build_volume,
};

/// Runs a body on a thread of its own, which has to end in time.
fn within(body: impl FnOnce() + Send + 'static) {
    let (ended, end) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        body();
        let _ = ended.send(());
    });
    let came = end.recv_timeout(Duration::from_secs(60));
    assert_ne!(came, Err(mpsc::RecvTimeoutError::Timeout), "it hangs");
    thread.join().unwrap();
}

fn volume(folder: &Path, io_threads: u16) -> Arc<Volume> {
    let drive = |name| format!("file:path={},size=1m", folder.join(name).display());
    let drives = [drive("a").parse().unwrap(), drive("b").parse().unwrap()];
    let options = VolumeOptions { io_threads, ..VolumeOptions::default() };
    build_volume("v", Layout::Linear, &drives, &options).unwrap().0
}

fn open(volume: &Arc<Volume>) -> Channel {
    Channel::open(volume, ChannelConfig::default()).unwrap()
}

/// Writes blocks of both drives and waits for them.
fn work(channel: &mut Channel, first: u64) {
    for number in 0..16 {
        let sector = (first + number) * 8 + number % 2 * 2048;
        channel.submit(Bio::write(sector, Buffer::new(4096))).unwrap();
    }
    assert_eq!(channel.wait(16, |done| assert!(done.status.is_ok())), 16);
}

#[test]
fn the_example_reads_what_it_wrote() {
    within(|| {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(file_volume::write_and_read(folder.path()).unwrap(), 1024);
    });
}

#[test]
fn a_program_without_an_io_thread_waits_and_polls_on_files() {
    within(|| {
        let folder = tempfile::tempdir().unwrap();
        let mut channel = open(&volume(folder.path(), 0));
        work(&mut channel, 0);
        channel.submit(Bio::read(0, Buffer::new(4096))).unwrap();
        let mut done = 0;
        while done == 0 {
            done = channel.poll(|done| assert!(done.status.is_ok()));
        }
        assert_eq!((done, channel.in_flight()), (1, 0));
    });
}

#[test]
fn threads_have_queues_and_one_too_many_gets_advice() {
    within(|| {
        let folder = tempfile::tempdir().unwrap();
        let volume = volume(folder.path(), 2);
        let all_open = Barrier::new(3);
        std::thread::scope(|scope| {
            for number in 0..2 {
                let (volume, all_open) = (&volume, &all_open);
                scope.spawn(move || {
                    let mut channel = open(volume);
                    all_open.wait();
                    for round in 0..20 {
                        work(&mut channel, number * 100 + round);
                    }
                    all_open.wait();
                });
            }
            all_open.wait();
            let refused = Channel::open(&volume, ChannelConfig::default()).err().unwrap();
            assert_eq!(refused.kind(), ErrorKind::Busy);
            let text = "drive d0: each of its 2 queues belongs to another thread; open the drive \
                        for as many I/O threads as use it at a time (io_threads)";
            assert_eq!(refused.to_string(), text);
            all_open.wait();
        });
        // The threads have ended, and their queues are free.
        work(&mut open(&volume), 0);
    });
}

#[test]
fn stripe_over_files_tells_too_many_threads_the_limit() {
    within(|| {
        let folder = tempfile::tempdir().unwrap();
        let spec = |name| format!("file:path={},size=8m", folder.path().join(name).display());
        let disk = BlockDevice::stripe(&[spec("a"), spec("b")]).unwrap();
        let threads = usize::from(STRIPE_THREADS) - 1;
        let all_open = Barrier::new(threads + 1);
        std::thread::scope(|scope| {
            for number in 0..threads as u64 {
                let (volume, all_open) = (disk.volume(), &all_open);
                scope.spawn(move || {
                    let opened = BlockDevice::open(volume);
                    all_open.wait();
                    let mut disk = opened.unwrap();
                    disk.write_at(number << 17, &[number as u8; 1 << 17]).unwrap();
                    let mut bytes = [0; 4096];
                    disk.read_at(number << 17, &mut bytes).unwrap();
                    assert_eq!(bytes, [number as u8; 4096]);
                    all_open.wait();
                });
            }
            all_open.wait();
            let volume = disk.volume();
            let refused = scope.spawn(|| BlockDevice::open(volume).err()).join().unwrap().unwrap();
            all_open.wait();
            assert_eq!(refused.kind(), ErrorKind::Busy);
            let text = refused.to_string();
            assert!(text.contains("its 64 queues") && text.contains("io_threads"), "{text}");
        });
    });
}

#[test]
fn thread_that_ends_with_io_in_flight_leaves_its_queue_to_next() {
    within(|| {
        let folder = tempfile::tempdir().unwrap();
        let volume = volume(folder.path(), 1);
        for _ in 0..3 {
            let volume = Arc::clone(&volume);
            let thread = std::thread::spawn(move || {
                let mut channel = open(&volume);
                channel.submit(Bio::write(0, Buffer::new(4096))).unwrap();
                channel.flush();
            });
            thread.join().unwrap();
        }
        work(&mut open(&volume), 0);
        drop(volume);
    });
}

#[test]
fn channels_of_a_thread_share_its_ring_until_the_last_closes() {
    within(|| {
        let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let volumes = [0, 1].map(|at| volume(folders[at].path(), 1));
        let mut channels = [&volumes[0], &volumes[0], &volumes[1]].map(open);
        channels.iter_mut().zip(0..).for_each(|(channel, first)| work(channel, first));
        let [first, second, mut third] = channels;
        drop(first);
        drop(second);
        let [volume_of_two, _other] = volumes;
        drop(volume_of_two);
        // The volume's files are not in use any more, although the thread still has its ring.
        let mut again = open(&volume(folders[0].path(), 1));
        work(&mut again, 0);
        work(&mut third, 0);
    });
}

#[test]
fn channel_without_an_io_thread_is_an_error_with_advice() {
    let folder = tempfile::tempdir().unwrap();
    let volume = volume(folder.path(), 1);
    let refused = ThreadChannel::open(&volume, ChannelConfig::default()).err().unwrap();
    assert_eq!(refused.kind(), ErrorKind::NotSupported);
    let text = "volume v: the queues of drive d0 belong to I/O threads, and there is none; open \
                the channel on one, with IoContext::channel, or with millrace::Channel, which makes \
                the calling thread one";
    assert_eq!(refused.to_string(), text);
}

#[test]
fn a_context_of_the_programs_own_has_channels_that_wait() {
    within(|| {
        let folder = tempfile::tempdir().unwrap();
        let volume = volume(folder.path(), 1);
        let mut context = IoContext::new(IoConfig::default()).unwrap();
        let refused = Channel::open(&volume, ChannelConfig::default()).err().unwrap();
        let text = "volume v: this thread has an IoContext of the program's own; open the channel \
                    with its method `channel`";
        assert_eq!(refused.to_string(), text);
        let mut channel = context.channel(&volume, 16, Stamp::Batch).unwrap();
        channel.submit(Bio::write(0, Buffer::new(4096))).unwrap();
        assert_eq!(channel.wait(1, |done| assert!(done.status.is_ok())), 1);
    });
}

#[test]
#[cfg(feature = "serve")]
fn program_uses_a_volume_it_serves_on_registered_threads() {
    use millrace::{
        DriveConfig, ExportConfig, Listen, ServeConfig, Server, ServerConfig, VolumeConfig,
    };

    within(|| {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("s");
        let drive = format!("file:path={},size=1m", folder.path().join("a").display());
        let export = ExportConfig {
            name: "v".into(),
            volume: "v".into(),
            nbd: vec![Listen::Unix(socket.clone())],
            ..ExportConfig::default()
        };
        let drives = vec![DriveConfig::new("a", drive.parse().unwrap())];
        let config = ServeConfig {
            volumes: vec![VolumeConfig::new("v", drives)],
            exports: vec![export],
            server: ServerConfig { threads: 2, own_threads: 1, ..ServerConfig::default() },
            ..ServeConfig::default()
        };
        let server = Server::start(&config, Arc::new(|_| ())).unwrap();
        let volume: &Arc<Volume> = server.opened().volume("v").unwrap();
        // Before any client: the program's thread must not take a queue of the server's threads.
        let mut own = BlockDevice::open(volume).unwrap();
        own.write_at(4096, &[7; 4096]).unwrap();
        let one_too_many = std::thread::scope(|scope| {
            scope.spawn(|| BlockDevice::open(volume).unwrap_err().kind()).join().unwrap()
        });
        assert_eq!(one_too_many, ErrorKind::Busy);
        let uri = format!("nbd:uri=nbd+unix:///v?socket={},connections=2", socket.display());
        let mut client = BlockDevice::open_drive(&uri).unwrap();
        let mut read = [0; 4096];
        for block in 0..8 {
            client.write_at(block * 8192, &[9; 4096]).unwrap();
            client.read_at(4096, &mut read).unwrap();
            assert_eq!(read, [7; 4096]);
            own.read_at(block * 8192, &mut read).unwrap();
            assert_eq!(read, [9; 4096]);
        }
        drop((client, own));
        assert!(server.stop(Duration::from_secs(5)).is_clean());
    });
}
