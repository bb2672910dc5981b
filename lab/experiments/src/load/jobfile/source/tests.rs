//! Tests of sources: what a pass meets, and in which shares.

use super::super::lines::tests::MemoryFiles;
use super::super::spec::JobFile;
use super::*;

const DEVICE: u64 = 1 << 30;

fn source(words: &str, size: u64) -> Source {
    let text = format!("[j]\n{}\n", words.replace(' ', "\n"));
    let file = JobFile::parse("t.fio", text.as_bytes(), &MemoryFiles(&[])).unwrap();
    let span = Span { begin: 1 << 20, size, io_size: size, device: DEVICE };
    Source::new(&file.jobs[0], span, 0).unwrap()
}

fn pass(source: &mut Source) -> Vec<Io> {
    std::iter::from_fn(|| {
        let direction = source.direction();
        source.next(direction)
    })
    .collect()
}

#[test]
fn sequential_pass_goes_through_region_and_may_end_beyond_it() {
    let mut source = source("rw=read bs=4k", 10_240);
    let offsets: Vec<u64> = pass(&mut source).iter().map(|io| io.offset - (1 << 20)).collect();
    assert_eq!(offsets, [0, 4096, 8192]);
    source.restart();
    assert_eq!(pass(&mut source).len(), 3);
}

#[test]
fn a_random_pass_meets_each_block_once() {
    for words in ["rw=randread bs=4k", "rw=randrw bs=4k", "rw=randwrite bsrange=4k-32k"] {
        let mut source = source(words, 1 << 20);
        for _ in 0..2 {
            let ios = pass(&mut source);
            let mut met = [0; 256];
            for io in &ios {
                let first = (io.offset - (1 << 20)) as usize / 4096;
                (0..io.bytes as usize / 4096).for_each(|block| met[first + block] += 1);
            }
            assert!(met.iter().all(|times| *times == 1), "{words}");
            assert!(ios.windows(2).any(|pair| pair[1].offset < pair[0].offset), "{words}");
            source.restart();
        }
    }
}

#[test]
fn without_a_map_blocks_come_again_and_stay_inside() {
    for words in
        ["rw=randread norandommap bsrange=4k-32k", "rw=randread random_distribution=zipf:1.1"]
    {
        let mut source = source(words, 1 << 20);
        for _ in 0..2000 {
            let io = source.next(READ).unwrap();
            assert!(io.offset + u64::from(io.bytes) <= 2 << 20, "{words}: {io:?}");
            assert!(io.offset >= 1 << 20, "{words}: {io:?}");
        }
    }
}

#[test]
fn shares_of_reads_and_of_random_places_are_kept() {
    let mut source = source("rw=randrw rwmixread=70 percentage_random=30 norandommap", 1 << 29);
    let (mut reads, mut behind, mut last) = (0, 0, [0; 3]);
    for _ in 0..20_000 {
        let direction = source.direction();
        reads += usize::from(direction == READ);
        let io = source.next(direction).unwrap();
        behind += usize::from(io.offset == last[direction]);
        last[direction] = io.offset + u64::from(io.bytes);
    }
    assert!((13_700..14_300).contains(&reads), "{reads}");
    assert!((13_700..14_300).contains(&behind), "{behind}");
}

#[test]
fn equal_seeds_give_equal_ios_and_clones_differ() {
    let text = b"[j]\nrw=randread\nbs=512\nrandseed=5\n";
    let job = &JobFile::parse("t.fio", text, &MemoryFiles(&[])).unwrap().jobs[0];
    let span = Span { begin: 0, size: 1 << 20, io_size: 1 << 20, device: DEVICE };
    let ios = |clone| pass(&mut Source::new(job, span, clone).unwrap());
    assert_eq!(ios(0), ios(0));
    assert_ne!(ios(0), ios(1));
    let none = Source::new(job, Span { size: 100, ..span }, 0).unwrap_err();
    assert_eq!(none, "bs=512: longer than the 100 bytes to work on");
}

/// Returns the places of the first I/Os, in blocks of 4 KiB from the region's start.
fn places(words: &str, size: u64, count: usize) -> Vec<u64> {
    let mut source = source(words, size);
    let next = std::iter::from_fn(|| source.next(READ));
    next.take(count).map(|io| (io.offset - (1 << 20)) / 4096).collect()
}

#[test]
fn number_after_its_kind_leaves_out_bytes_or_goes_backwards() {
    assert_eq!(places("rw=read:8k", 1 << 20, 4), [0, 3, 6, 9]);
    assert_eq!(places("rw=read:8k", 32_768, 9), [0, 3, 6], "fio ends where the region ends");
    assert_eq!(places("rw=read:-8k", 1 << 20, 4), [0, 254, 253, 252]);
}

#[test]
fn a_number_behind_a_random_kind_is_how_many_follow_each_other() {
    let begins = |words: &str| {
        let places = places(words, 1 << 29, 400);
        places.windows(2).filter(|pair| pair[1] != pair[0] + 1).count()
    };
    assert!((45..=50).contains(&begins("rw=randread:8 norandommap")));
    assert!(begins("rw=randread norandommap") > 390);
}

#[test]
fn zones_are_passed_in_order_without_the_gaps() {
    let words = "rw=read zonemode=strided zonesize=8k zonerange=16k zoneskip=16k";
    assert_eq!(places(words, 65_536, 5), [0, 1, 8, 9, 16]);
    assert_eq!(
        places("rw=read zonemode=strided zonesize=12k zonerange=8k zoneskip=4k", 1 << 20, 5),
        [0, 1, 0, 3, 4]
    );
    let mut last = source(words, 1 << 20);
    last.span.device = last.span.begin + 40_960;
    let zones: Vec<u64> =
        std::iter::from_fn(|| last.next(READ)).take(5).map(|io| io.offset).collect();
    assert_eq!(zones[4], last.span.begin, "the first zone follows the device's last");
}

#[test]
fn random_places_are_multiples_of_blockalign() {
    for (words, unit) in [
        ("rw=randread bs=4k blockalign=64k", 16),
        ("rw=randread bssplit=4k/50:8k/ blockalign=8192/75:4096/21", 2),
    ] {
        let met = places(words, 1 << 20, 2000);
        assert_eq!(met.len(), 2000, "{words}: blocks come again");
        assert!(met.iter().all(|at| at % unit == 0) && met.iter().any(|at| at % (2 * unit) > 0));
        assert!(met.iter().any(|at| *at >= 256 - 2 * unit), "{words}: the last is met");
    }
    let equal = places("rw=randread bs=4k blockalign=4k", 1 << 20, 2000);
    assert_eq!(equal.len(), 256, "each block once");
}
