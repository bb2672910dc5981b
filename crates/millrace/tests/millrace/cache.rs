//! A cached volume that programs make with `cache_over`.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use millrace::{
    Bio, Buffer, CacheConfig, Channel, ChannelConfig, Layout, VolumeOptions, build_volume,
    cache_over,
};

#[test]
fn overwrite_waits_for_the_first_dirty_callback() {
    let options = VolumeOptions { io_threads: 3, ..VolumeOptions::default() };
    let drives = ["ram:size=64m".parse().unwrap()];
    let (below, _) = build_volume("v", Layout::Linear, &drives, &options).unwrap();
    let config = CacheConfig { size_bytes: 16 << 20, ..CacheConfig::default() };
    let (volume, cache) = cache_over(below, config, 2).unwrap();
    let (enter, entered): (Sender<()>, Receiver<()>) = channel();
    let (release, released) = channel::<()>();
    let first = Mutex::new(Some(released));
    cache.before_first_dirty(Arc::new(move || {
        // Later calls wait for the first.
        let mut first = first.lock().unwrap();
        if let Some(released) = first.take() {
            enter.send(()).unwrap();
            released.recv().unwrap();
        }
    }));
    let (done, is_done) = channel();
    let write = |byte| {
        let (volume, done) = (Arc::clone(&volume), done.clone());
        thread::spawn(move || {
            let mut channel = Channel::open(&volume, ChannelConfig::default()).unwrap();
            let mut data = Buffer::new(4096);
            data.fill(byte);
            channel.submit(Bio::write(0, data)).unwrap();
            channel.wait(1, |write| assert!(write.status.is_ok()));
            done.send(byte).unwrap();
        })
    };
    let writers = [write(1), {
        entered.recv().unwrap();
        write(2)
    }];
    let early = is_done.recv_timeout(Duration::from_millis(50));
    assert!(early.is_err(), "write {early:?} was answered while the callback ran");
    release.send(()).unwrap();
    writers.into_iter().for_each(|writer| writer.join().unwrap());
    assert_eq!(is_done.try_iter().count(), 2);
}
