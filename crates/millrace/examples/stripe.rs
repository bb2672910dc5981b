//! Writes and reads a stripe of two drives: `cargo run -p millrace --example stripe`.
//!
//! Stripes over the drives in the arguments, such as `file:path=a.img,size=64m`, or over memory
//! without any.

use std::error::Error;

use millrace::BlockDevice;

fn main() -> Result<(), Box<dyn Error>> {
    let given: Vec<String> = std::env::args().skip(1).collect();
    let given: Vec<&str> = given.iter().map(String::as_str).collect();
    run(if given.is_empty() { &["ram:size=64m", "ram:size=64m"] } else { &given })
}

/// Writes one MiB, flushes, and reads it back.
pub fn run(drives: &[&str]) -> Result<(), Box<dyn Error>> {
    let mut disk = BlockDevice::stripe(drives)?;
    let written: Vec<u8> = (0..1 << 20).map(|at: u32| (at >> 12) as u8).collect();
    disk.write_at(4096, &written)?;
    disk.flush()?;
    let mut read = vec![0; written.len()];
    disk.read_at(4096, &mut read)?;
    assert!(read == written, "what was written comes back");
    Ok(())
}
