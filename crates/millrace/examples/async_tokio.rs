//! Async tasks that share a volume: `cargo run -p millrace --example async_tokio`.
//!
//! The futures of `AsyncDevice` work with any runtime; here many tokio tasks share one device.

use std::error::Error;
use std::sync::Arc;

use millrace::{AsyncDevice, Buffer};

const TASKS: u64 = 64;
const BLOCK: u64 = 4096;

fn main() -> Result<(), Box<dyn Error>> {
    run()
}

/// Writes a block in each of several tasks, then reads all blocks back.
pub fn run() -> Result<(), Box<dyn Error>> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build()?;
    runtime.block_on(tasks())
}

async fn tasks() -> Result<(), Box<dyn Error>> {
    let disk = Arc::new(AsyncDevice::stripe(&["ram:size=1m", "ram:size=1m"])?);
    let write = |number: u64| {
        let disk = Arc::clone(&disk);
        tokio::spawn(async move {
            let mut buffer = Buffer::new(BLOCK as usize);
            buffer.fill(number as u8);
            disk.write(number * BLOCK, buffer).await
        })
    };
    // All reads are in flight at once, while the loop awaits them in order.
    let tasks: Vec<_> = (0..TASKS).map(write).collect();
    for task in tasks {
        task.await??;
    }
    disk.flush().await?;
    for number in 0..TASKS {
        let block = disk.read(number * BLOCK, BLOCK as usize).await?;
        assert!(block.iter().all(|byte| *byte == number as u8), "block {number}");
    }
    Ok(())
}
