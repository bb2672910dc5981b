//! Tests of job files: words, mistakes, and that nothing makes the parser panic.

use proptest::prelude::*;

use super::super::lines::tests::MemoryFiles;
use super::super::options::NOTHING;
use super::super::words::WORDS;
use super::*;

fn parse(text: &str) -> Result<JobFile, String> {
    JobFile::parse("t.fio", text.as_bytes(), &MemoryFiles(&[])).map_err(|error| error.to_string())
}

fn job_of(words: &str) -> JobSpec {
    let lines = words.replace(' ', "\n");
    parse(&format!("[j]\n{lines}\n")).unwrap().jobs.remove(0)
}

#[test]
fn words_of_a_job_win_over_those_of_global_sections() {
    let text = "[global]\nbs=8k\niodepth=4\nthread\nioengine=libaio\n[a]\nbs=16k\n[b]\nname=c\n";
    let file = parse(text).unwrap();
    assert_eq!(file.jobs[0].shape.sizes[0], Sizes::One(16_384));
    assert_eq!(file.jobs[1].shape.sizes[0], Sizes::One(8192));
    assert_eq!((file.jobs[1].flow.iodepth, file.jobs[1].name.as_str()), (4, "c"));
    assert_eq!(file.ignored, ["thread"]);
    assert_eq!(file.jobs[0].own, [("bs".to_owned(), "16k".to_owned())]);
}

#[test]
fn an_engine_says_who_does_the_io_and_how_many_are_in_flight() {
    for (words, inline, depth) in [
        ("direct=1", true, 1),
        ("iodepth=8", true, 8),
        ("iodepth=8 direct=1", false, 8),
        ("iodepth=8 ioengine=libaio", true, 8),
        ("iodepth=8 ioengine=libaio direct=1", false, 8),
        ("iodepth=8 ioengine=io_uring", false, 8),
        ("iodepth=8 ioengine=psync direct=1", true, 1),
        ("ioengine=psync iodepth=8 ioengine=rbd direct=1", false, 8),
    ] {
        let job = job_of(words);
        assert_eq!((job.is_inline(), job.flow.iodepth), (inline, depth), "{words}");
    }
    let ignored = parse("[j]\nioengine=rbd\n[k]\nioengine=sync\niodepth=2\n").unwrap().ignored;
    assert_eq!(ignored, ["iodepth (ioengine does one I/O at a time)", "ioengine=rbd"]);
}

#[test]
fn mix_without_writes_or_without_reads_uses_one_direction() {
    for (words, reads, changes) in [
        ("rw=randrw rwmixread=100 rate_iops=100", true, false),
        ("rw=rw rwmixwrite=0", true, false),
        ("rwmixread=100 rw=randrw", true, false),
        ("rw=randrw rwmixread=0 rate=1m", false, true),
        ("rw=randrw rwmixread=99", true, true),
        ("rw=read rwmixread=0", true, false),
        ("rw=randwrite rwmixread=100", false, true),
    ] {
        let job = job_of(words);
        assert_eq!((job.reads_data(), job.changes_data()), (reads, changes), "{words}");
    }
}

#[test]
fn job_without_filename_has_one_that_fio_makes_in_its_directory() {
    for (words, names) in [
        ("directory=/d", ["/d/j.0.0", "/d/j.1.0"]),
        ("directory=/d name=k", ["/d/k.0.0", "/d/k.1.0"]),
        ("directory=/d filename=f", ["/d/f", "/d/f"]),
        ("directory=/d filename=/f", ["/d//f", "/d//f"]),
        ("rw=read numjobs=2", ["j.0.0", "j.1.0"]),
    ] {
        let job = job_of(words);
        assert_eq!([0, 1].map(|clone| job.filename_of(clone)), names, "{words}");
    }
}

#[test]
fn the_page_cache_is_told_what_the_kind_says_or_the_hint() {
    for (words, advice) in [
        ("rw=randrw", Advice::Random),
        ("rw=write", Advice::Sequential),
        ("rw=randread fadvise_hint=0", Advice::Normal),
        ("rw=read fadvise_hint=random", Advice::Random),
        ("rw=randread fadvise_hint=1", Advice::Random),
    ] {
        assert_eq!(job_of(words).advice(), advice, "{words}");
    }
}

#[test]
fn mixes_sizes_and_rates_are_read_for_each_direction() {
    let job = job_of("rw=randrw rwmixread=70 rwmixwrite=40 bs=8k,4k rate_iops=100,,7 rate=,1m");
    assert_eq!(job.shape.read_percent, 60);
    assert_eq!(job.shape.sizes[..2], [Sizes::One(8192), Sizes::One(4096)]);
    assert_eq!(job.flow.rate_iops, [Some(100), None, Some(7)]);
    assert_eq!(job.flow.rate, [None, Some(1 << 20), Some(1 << 20)]);
    let job = job_of("rw=write bssplit=4k/50:8k/,1k/100 bs=2k");
    let of_a_split = job_of("bs=8k/60:4k/35:16k/4:1k/1").shape.sizes;
    assert_eq!(of_a_split, [8192, 4096, 16_384].map(Sizes::One), "the first three, as in fio");
    let of_a_list = job_of("bs=,8k/15,1024k,85,").shape.sizes;
    assert_eq!(of_a_list, [4096, 8192, 1 << 20].map(Sizes::One), "the first three");
    let split = Sizes::Split(vec![(1024, 100.0)]);
    assert_eq!(job.shape.sizes[1], split, "a split wins over one size, as in fio");
    let job = job_of("bs=4k,8k rate_iops=7,8 bs=,16k rate_iops=,0 rwmixread=50");
    assert_eq!(job.shape.sizes[..2], [Sizes::One(4096), Sizes::One(16_384)]);
    assert_eq!(job.flow.rate_iops, [Some(7), None, None], "a direction that is not given is kept");
    assert_eq!(job_of("bs=2k bsrange=4k-4k").shape.sizes[0], Sizes::One(4096));
}

#[test]
fn the_unit_of_sizes_holds_for_those_before_it_too() {
    let job = job_of("bs=512k size=1024k kb_base=1000");
    assert_eq!(job.shape.sizes[0], Sizes::One(512_000));
}

#[test]
fn times_have_the_units_that_fio_has_for_the_word() {
    let job = job_of("runtime=2 ramp_time=500ms thinktime=10 startdelay=1-3 loops=2");
    assert_eq!((job.span.runtime_ns, job.span.ramp_ns), (Some(2_000_000_000), 500_000_000));
    assert_eq!((job.flow.think.time_ns, job.span.loops), (10_000, 2));
    assert_eq!(job.span.delay_ns, (1_000_000_000, 3_000_000_000));
}

#[test]
fn a_file_that_is_to_be_made_is_as_long_as_its_jobs_reach() {
    assert_eq!(job_of("size=1m offset=64k").file_bytes(), Some((1 << 20) + 65_536));
    assert_eq!(job_of("size=1m numjobs=3 offset_increment=1m").file_bytes(), Some(3 << 20));
    assert_eq!(job_of("size=50%").file_bytes(), None);
    assert_eq!(job_of("rw=read").file_bytes(), None);
    assert_eq!(job_of("filesize=10m size=1m").file_bytes(), Some(10 << 20));
}

#[test]
fn error_names_its_line_and_word_and_the_correction() {
    for (words, expected) in [
        ("bs=4x", "t.fio:2: bs=\"4x\": write a number such as 16, 4k or 1g"),
        ("rw=rd", "t.fio:2: rw=\"rd\": choose read, write, trim, rw,"),
        ("iodpeth=4", "t.fio:2: iodpeth: unknown job file option; did you mean iodepth?"),
        ("rw=trim\nverify=crc32c", "t.fio:1: verify: trims leave nothing to check"),
        ("rw=write:-6k\nverify=crc32c", "t.fio:1: verify: blocks of 4096 bytes would overlap"),
        (
            "rw=randwrite\nba=512\nverify=crc32c",
            "t.fio:1: verify: blocks of 4096 bytes would overlap",
        ),
        ("latency_percentile=101", "t.fio:2: latency_percentile=\"101\": write a percentage"),
        ("verify=md6", "t.fio:2: verify=\"md6\": write crc32c, or 0 for none"),
        ("nrfiles=2", "t.fio:2: nrfiles: this fio option is not supported; write"),
        ("ioengine=", "t.fio:2: ioengine: it needs a value; write ioengine=..."),
        ("bs", "t.fio:2: bs: it needs a value; write bs=..."),
        ("zonemode=zbd", "t.fio:2: zonemode=\"zbd\": the zones of zoned devices are not supported"),
        ("zonemode=strided", "t.fio:1: zonemode: zones need a size; add zonesize"),
        (
            "rw=randread\nzonemode=strided\nzonesize=1m",
            "t.fio:1: zonesize: zones are for sequential I/O",
        ),
        ("zonesize=1m", "t.fio:1: zonesize: has no effect without zones; add zonemode=strided"),
        ("atomic=1", "t.fio:2: atomic: this fio option is not supported"),
        (
            "bs_unaligned=1",
            "t.fio:2: bs_unaligned: blocksize_unaligned: this fio option is not supported",
        ),
        ("rw=read:x", "t.fio:2: rw=\"x\": write a number"),
        ("wait_for=k\n[k]", "t.fio:1: wait_for=k: no job above has this name"),
        ("percentile_list=50:101", "t.fio:2: percentile_list=\"50:101\": write 1 to 20 numbers"),
        ("bs=2g", "t.fio:1: bs: reads and writes are 1g at most"),
        ("filename=a:b", "t.fio:2: filename=\"a:b\": a job has one file"),
        ("directory=/a:/b", "t.fio:2: directory=\"/a:/b\": a job has one directory"),
        (
            "bssplit=4k/90:8k/11:1k/",
            "t.fio:2: bssplit=\"4k/90:8k/11:1k/\": the percentages add up to 101 %",
        ),
        ("fadvise_hint=2", "t.fio:2: fadvise_hint=\"2\": write 0, 1, random or sequential"),
        ("iodepth=0", "t.fio:2: iodepth=\"0\": write 1 to 65536"),
        ("numjobs=4096\n[k]", "t.fio: 4097 jobs in total are too many; use at most 4096"),
    ] {
        let error = parse(&format!("[j]\n{words}\n")).unwrap_err();
        assert!(error.starts_with(expected), "{error}");
    }
}

#[test]
fn words_that_change_nothing_are_taken_with_a_note() {
    for (words, note) in [
        ("time_based", "time_based (without runtime)"),
        ("unlink=1", "unlink (files are left in place)"),
        ("ss=iops:1%", "steadystate"),
        ("ss_dur=300", "steadystate_duration"),
        ("buffer_compress_percentage=0", "buffer_compress_percentage"),
        ("rw=write\nverify=md5", "verify=md5 (blocks carry a crc32c)"),
        ("nrfiles=1", "nrfiles"),
        ("sync=0", "sync"),
        ("write_lat_log=l", "write_lat_log"),
        ("cmdprio_percentage=20", "cmdprio_percentage"),
    ] {
        assert_eq!(parse(&format!("[j]\n{words}\n")).unwrap().ignored, [note], "{words}");
    }
}

#[test]
fn an_unset_variable_is_an_error_whatever_word_it_stands_behind() {
    for word in WORDS.iter().map(|word| word.name) {
        let error = parse(&format!("[j]\n{word}=${{UNSET}}\n")).unwrap_err();
        assert!(error.contains("the variable UNSET is not set"), "{word}: {error}");
    }
}

/// Generates lines that resemble a job file.
fn line() -> impl Strategy<Value = String> {
    let word = prop::sample::select(
        WORDS.iter().map(|word| word.name).chain(NOTHING.split(' ')).collect::<Vec<_>>(),
    );
    let value = prop_oneof![
        "[0-9]{1,20}[kmgtp%]?[ib]{0,2}",
        "(zipf|pareto|normal|random)(:[0-9.e-]{1,6}){0,3}",
        "[0-9k]{1,4}/[0-9]{0,3}(:[0-9k]{1,3}/[0-9]{0,3}){0,4}",
        "(rand)?(read|write|rw|trim)",
        ".{0,12}",
    ];
    prop_oneof![
        (word, value).prop_map(|(word, value)| format!("{word}={value}")),
        ".{0,20}".prop_map(String::from),
        "\\[[a-z]{0,6}\\]?".prop_map(String::from),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn no_bytes_make_the_parser_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let _ = JobFile::parse("t.fio", &bytes, &MemoryFiles(&[]));
    }

    #[test]
    fn no_lines_make_the_parser_panic(lines in prop::collection::vec(line(), 0..12)) {
        let text = format!("[j]\n{}", lines.join("\n"));
        if let Ok(file) = parse(&text) {
            for job in file.jobs {
                let _ = job.file_bytes();
            }
        }
    }
}
