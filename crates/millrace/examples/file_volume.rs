//! Writes and reads a volume of two files: `cargo run -p millrace --example file_volume -- FOLDER`.
//!
//! Creates `a.img` and `b.img` of 64 MiB in the directory and stripes over them. Writes 1024 blocks
//! with 32 in flight, flushes, and reads them back.
#![allow(clippy::print_stdout)]

use std::error::Error;
use std::path::Path;

use millrace::{Bio, Buffer, Channel, ChannelConfig, Completion, Layout};

const BLOCKS: u64 = 1024;

fn contents(block: u64) -> Buffer {
    let mut buffer = Buffer::new(4096);
    buffer.fill(block as u8 ^ 0x5a);
    buffer
}

/// Submits bios, 32 at a time, and waits until all have completed.
fn run(
    channel: &mut Channel,
    bios: impl Iterator<Item = Bio>,
    mut done: impl FnMut(Completion),
) -> Result<(), Box<dyn Error>> {
    for bio in bios {
        if channel.in_flight() == 32 {
            channel.wait(1, &mut done);
        }
        channel.submit(bio).map_err(|rejected| format!("{:?}", rejected.reason))?;
    }
    channel.wait(channel.in_flight() as usize, done);
    Ok(())
}

/// Runs the example. Returns the number of blocks that were read back as written.
pub fn write_and_read(folder: &Path) -> Result<u64, Box<dyn Error>> {
    let file = |name| format!("file:path={},size=64m", folder.join(name).display()).parse();
    let (files, layout) = ([file("a.img")?, file("b.img")?], Layout::Stripe { chunk_sectors: 128 });
    let (volume, _notes) = millrace::build_volume("files", layout, &files, &Default::default())?;
    let mut channel = Channel::open(&volume, ChannelConfig::default())?;
    let (mut failed, mut right) = (0, 0);
    let mut check = |done: Completion| failed += u64::from(!done.status.is_ok());
    run(&mut channel, (0..BLOCKS).map(|n| Bio::write(n * 8, contents(n))), &mut check)?;
    run(&mut channel, std::iter::once(Bio::flush()), &mut check)?;
    let read = |n| Bio::read(n * 8, Buffer::new(4096)).with_user_data(n);
    run(&mut channel, (0..BLOCKS).map(read), |done| {
        let same = |buffer: Buffer| buffer[..] == contents(done.user_data)[..];
        right += u64::from(done.bio.into_buffer().is_some_and(same));
    })?;
    if failed == 0 { Ok(right) } else { Err(format!("{failed} writes failed").into()) }
}

#[allow(dead_code, reason = "the test of this example calls the function above")]
fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::args().nth(1).ok_or("usage: file_volume FOLDER")?;
    println!("{} of {BLOCKS} blocks read as written", write_and_read(Path::new(&folder))?);
    Ok(())
}
