//! Random operations on striped volumes against a plain memory image.

use millrace_block::{Bio, Buffer, OpFlags, Status};

use crate::harness::{Dice, Kind, Rig, buffer_of, pattern, plans};

/// Sectors of the part of the volume that is used.
const SECTORS: u64 = 6000;
const ROUNDS: u64 = 40;

/// Splits a length in sectors into pieces for a vectored bio.
fn pieces(dice: &mut Dice, nr_sectors: u64) -> Vec<usize> {
    let (mut left, mut list) = (nr_sectors, Vec::new());
    while left > 0 {
        let piece = if list.len() < 6 { 1 + dice.roll(left) } else { left };
        list.push(piece as usize * 512);
        left -= piece;
    }
    list
}

fn write_bio(dice: &mut Dice, sector: u64, data: &[u8]) -> Bio {
    let lens = pieces(dice, data.len() as u64 / 512);
    let mut at = 0;
    let buffers = lens.iter().map(|len| {
        at += len;
        buffer_of(&data[at - len..at])
    });
    let bio = match dice.roll(2) {
        0 => Bio::write(sector, buffer_of(data)),
        _ => Bio::writev(sector, buffers.collect()),
    };
    match dice.roll(8) {
        0 => bio.with_flags(OpFlags::FUA),
        1 => bio.with_flags(OpFlags::PREFLUSH),
        _ => bio,
    }
}

/// Up to 8 operations at once, on ranges that do not overlap; each read is checked at the end.
fn round(rig: &mut Rig, image: &mut [u8], dice: &mut Dice, number: u64) {
    let mut at = dice.roll(SECTORS / 8);
    let mut reads = Vec::new();
    while at < SECTORS {
        let most = if dice.roll(4) == 0 { 1500 } else { 40 };
        let nr = (1 + dice.roll(most)).min(SECTORS - at);
        let (start, len) = (at as usize * 512, nr as usize * 512);
        match dice.roll(8) {
            0..3 => {
                let data = pattern(at, len, number);
                image[start..start + len].copy_from_slice(&data);
                rig.submit(write_bio(dice, at, &data));
            }
            3 => {
                image[start..start + len].fill(0);
                rig.submit(Bio::discard(at, nr as u32));
            }
            4 => {
                image[start..start + len].fill(0);
                let flags = if dice.roll(2) == 0 { OpFlags::NONE } else { OpFlags::NOUNMAP };
                rig.submit(Bio::write_zeroes(at, nr as u32).with_flags(flags));
            }
            5 => rig.submit(Bio::flush()),
            _ => {
                let lens = pieces(dice, nr);
                let bio = Bio::readv(at, lens.into_iter().map(Buffer::new).collect());
                rig.submit(bio.with_user_data(1 + reads.len() as u64));
                reads.push((start, len));
            }
        }
        at += nr + dice.roll(1500);
    }
    for done in rig.drain() {
        assert_eq!(done.status, Status::Ok);
        if let Some(&(start, len)) = reads.get((done.user_data as usize).wrapping_sub(1)) {
            let back =
                done.bio.into_buffers().iter().map(|b| b.to_vec()).collect::<Vec<_>>().concat();
            assert!(back == image[start..start + len], "{len} bytes at {start}, round {number}");
        }
    }
}

fn random_on_stripes(chunk_sectors: u32) {
    let kinds = [
        Kind::Ram,
        Kind::ModelRam,
        Kind::File,
        Kind::FileThreads,
        Kind::FileInline,
        Kind::FaultRam,
        Kind::FaultVolatile,
        Kind::Nbd,
    ];
    for (seed, plan) in plans(&kinds).enumerate() {
        let mut rig = Rig::new(&plan.stripe(3, chunk_sectors));
        let mut dice = Dice(0x1234_5678 + seed as u64);
        let mut image = vec![0u8; SECTORS as usize * 512];
        for number in 0..ROUNDS {
            round(&mut rig, &mut image, &mut dice, number);
        }
        assert!(rig.read(0, image.len()) == image);
    }
}

#[test]
fn random_operations_on_stripe_of_4k_chunks_equal_memory_image() {
    random_on_stripes(8);
}

#[test]
fn random_operations_on_stripe_of_64k_chunks_equal_memory_image() {
    random_on_stripes(128);
}
