//! Tests of runs: what job files do on drives in memory.

use super::super::lines::tests::MemoryFiles;
use super::*;
use millrace_block::{DiskConfig, Layout};
use millrace_drives::open;

/// Returns volumes for jobs, all of one drive in memory.
fn volume(drive: &str) -> Arc<Volume<Native>> {
    volume_with(drive, DiskConfig::default())
}

fn volume_with(drive: &str, config: DiskConfig<Native>) -> Arc<Volume<Native>> {
    let driver = open(&drive.parse().unwrap(), 16).unwrap().driver;
    let disk = Disk::new(driver, config).unwrap();
    Volume::new("v", Layout::Linear, vec![disk]).unwrap()
}

fn run_on(drive: &str, text: &str) -> Result<Vec<JobReport>, BenchError> {
    let file = JobFile::parse("t.fio", text.as_bytes(), &MemoryFiles(&[])).unwrap();
    let volume = volume(drive);
    let volumes: Vec<_> = file.jobs.iter().map(|_| vec![Arc::clone(&volume)]).collect();
    run_jobs(&file, &volumes, &JobSetting::default(), &mut |_, _| ()).map(|(reports, _)| reports)
}

/// Returns the number of I/Os of each direction, and of flushes, for each report.
fn counts(text: &str) -> Vec<[u64; 4]> {
    let reports = run_on("ram:size=64m", text).unwrap();
    let of = |report: &JobReport| {
        let flows = &report.tally.flows;
        [flows[0].ios, flows[1].ios, flows[2].ios, report.tally.sync.spread.count]
    };
    reports.iter().map(of).collect()
}

fn one(words: &str) -> [u64; 4] {
    counts(&format!("[j]\n{}\n", words.replace(' ', "\n")))[0]
}

/// Expected counts are those of fio 3.33 for the same words.
#[test]
fn jobs_bound_by_size_do_as_many_ios_as_fio() {
    for (words, expected) in [
        ("rw=read size=10k", [3, 0, 0, 0]),
        ("rw=randread size=10k", [2, 0, 0, 0]),
        ("rw=read size=16k io_size=40k", [10, 0, 0, 0]),
        ("rw=randread size=16k io_size=40k", [10, 0, 0, 0]),
        ("rw=randread size=16k io_size=10k", [3, 0, 0, 0]),
        ("rw=randread size=1000k bs=16k norandommap", [63, 0, 0, 0]),
        ("rw=read size=1m loops=3", [768, 0, 0, 0]),
        ("rw=randread size=1m iodepth=16 random_distribution=zipf:1.2", [256, 0, 0, 0]),
        ("rw=randread size=1m percentage_random=50", [256, 0, 0, 0]),
        ("rw=read size=50% bs=1m", [32, 0, 0, 0]),
        ("rw=write size=1m fsync=16 fdatasync=8 iodepth=4", [0, 256, 0, 15]),
        ("rw=write size=1m end_fsync=1", [0, 256, 0, 0]),
        ("rw=read size=1m number_ios=10", [10, 0, 0, 0]),
        ("rw=write size=1m verify=crc32c iodepth=8", [256, 256, 0, 0]),
        ("rw=randwrite size=1m verify=crc32c do_verify=0", [0, 256, 0, 0]),
        ("rw=write:12k size=1m offset=512 verify=crc32c iodepth=8", [64, 64, 0, 0]),
        ("rw=randtrim size=1m", [0, 0, 256, 0]),
        ("rw=write size=1m filesize=512k", [0, 128, 0, 0]),
        ("rw=read offset=60m size=4m bs=64k", [64, 0, 0, 0]),
        ("rw=randread size=1m thinktime=1 iodepth=4 thinktime_blocks=16", [256, 0, 0, 0]),
        ("rw=read size=1m iodepth_batch=3 iodepth=7", [256, 0, 0, 0]),
    ] {
        assert_eq!(one(words), expected, "{words}");
    }
    let [reads, writes, ..] = one("rw=randrw size=1m rwmixread=70");
    assert_eq!(reads + writes, 256);
    assert!((160..200).contains(&reads), "{reads}");
}

/// As in fio, a direction without a share has no rate, and its turn never comes.
#[test]
fn mix_of_one_direction_has_no_ios_of_other_whatever_rates_are() {
    for rates in ["", "rate_iops=4000", "rate_iops=4000,4000", "rate=16m,16m"] {
        for rw in ["rw", "randrw"] {
            let words =
                |percent| format!("rw={rw} rwmixread={percent} size=128k iodepth=4 {rates}");
            assert_eq!(one(words(100).trim()), [32, 0, 0, 0], "{}", words(100));
            assert_eq!(one(words(0).trim()), [0, 32, 0, 0], "{}", words(0));
        }
    }
}

#[test]
fn job_thinks_after_each_io_whatever_is_in_flight() {
    for (words, pauses) in [("iodepth=16", 9), ("iodepth=16\nthinktime_blocks=5", 1)] {
        let file = format!("[j]\nrw=randread\nnumber_ios=10\nthinktime=10ms\n{words}\n");
        let begin = std::time::Instant::now();
        assert_eq!(counts(&file), [[10, 0, 0, 0]], "{words}");
        let lasted = begin.elapsed().as_millis();
        assert!(lasted >= pauses * 10, "{words}: {lasted} ms");
    }
}

#[test]
fn groups_add_up_and_stonewalls_and_new_groups_part_them() {
    let text = "[global]\nsize=1m\ngroup_reporting\n[a]\nnumjobs=2\n[b]\n[c]\nstonewall\nnumjobs=3\n\
                [d]\nnew_group\n";
    assert_eq!(counts(text), [[768, 0, 0, 0], [768, 0, 0, 0], [256, 0, 0, 0]]);
    let single = counts(&text.replace("group_reporting", ""));
    assert_eq!(single.len(), 7);
    let file = text.replace("[d]", "[d]\nrw=write");
    let reports = run_on("ram:size=64m", &file).unwrap();
    let heads: Vec<_> = reports.iter().map(|r| (r.job, r.members, r.group)).collect();
    assert_eq!(heads, [(0, 3, 0), (2, 3, 1), (3, 1, 2)]);
}

#[test]
fn a_stonewall_waits_for_the_jobs_before_it() {
    let text = "[w]\nrw=randwrite\nverify=crc32c\ndo_verify=0\nsize=2m\niodepth=8\n\
                [r]\nstonewall\nrw=read\nsize=2m\n";
    assert_eq!(counts(text), [[0, 512, 0, 0], [512, 0, 0, 0]]);
}

#[test]
fn a_rate_is_kept_and_time_ends_a_job_that_has_more_to_do() {
    let [reads, ..] = one("rw=randread rate_iops=200 runtime=500ms time_based size=1m");
    // The rate allows one I/O at once and one every five milliseconds; a busy machine loses none.
    assert!((95..=101).contains(&reads), "{reads}");
    let [reads, writes, ..] = one("rw=randrw rate_iops=100,50 size=64m runtime=600ms");
    assert!((50..=61).contains(&reads) && (25..=31).contains(&writes), "{reads} {writes}");
}

#[test]
fn an_io_that_fails_ends_its_job_with_its_errno() {
    let bad = "fault:drive=(ram:size=4m),range=512k-516k,status=eio,op=";
    let text = "[j]\nrw=write\nsize=1m\nverify=crc32c\n";
    let tally = &run_on(&format!("{bad}write"), text).unwrap()[0].tally;
    assert_eq!((tally.errno, tally.errors, tally.flows[1].ios), (libc::EIO, 1, 128));
    assert_eq!(tally.verified, 0, "a job that failed reads nothing back");
    let tally = &run_on(&format!("{bad}read"), text).unwrap()[0].tally;
    assert_eq!((tally.errno, tally.verified), (libc::EILSEQ, 255));
    let said = tally.first_error.as_deref().unwrap();
    assert!(said.starts_with("verify: offset 524288: "), "{said}");
    let refused = run_on("null:size=4m", text).unwrap_err().to_string();
    assert_eq!(refused, "t.fio:1: job j: verify: the null drive keeps no data; use ram or file");
}

#[test]
fn what_does_not_fit_device_is_refused_with_line_of_job() {
    for (words, expected) in [
        ("bs=1000", "t.fio:2: job j: bs=1000: the device has blocks of 512 bytes"),
        ("cpus_allowed=0,60000", "t.fio:2: job j: cpus_allowed: CPU 60000 is none of the "),
        ("offset=128m", "t.fio:2: job j: offset=134217728 and size=0: the device has 67108864"),
        ("size=128m", "t.fio:2: job j: offset=0 and size=134217728: the device has"),
        (
            "iodepth=65536\nbs=32m\nnumjobs=64",
            "t.fio:2: job j: bs=33554432 iodepth=65536 numjobs=64:",
        ),
        ("bs=128m", "t.fio:2: job j: bs=134217728: longer than the 67108864 bytes"),
    ] {
        let error = run_on("ram:size=64m", &format!(";\n[j]\n{words}\n")).unwrap_err().to_string();
        assert!(error.starts_with(expected), "{error}");
    }
}

#[test]
fn a_drive_that_never_answers_ends_a_job_in_its_time() {
    for engine in ["psync", "libaio"] {
        let text = format!("[j]\nrw=randwrite\nsize=1m\niodepth=4\nioengine={engine}\n");
        let file = JobFile::parse("t.fio", text.as_bytes(), &MemoryFiles(&[])).unwrap();
        let config = DiskConfig { timeout: Duration::from_millis(200), ..DiskConfig::default() };
        let volume = volume_with("fault:drive=(ram:size=16m),stuck=true", config);
        let start = std::time::Instant::now();
        let reports = run_jobs(&file, &[vec![volume]], &JobSetting::default(), &mut |_, _| ());
        // By chance, as before, it takes minutes.
        assert!(start.elapsed().as_secs() < 20, "{engine}: {:?}", start.elapsed());
        assert_eq!(reports.unwrap().0[0].tally.errno, millrace_block::Status::TimedOut.errno());
    }
}

#[test]
fn a_job_that_only_reads_checks_the_blocks_of_an_earlier_one() {
    let job = |name: &str, words: &str| format!("[{name}]\nstonewall\nverify=meta\n{words}\n");
    let write = job("w", "rw=write\nsize=1m\nbs=64k\ndo_verify=0");
    let read = job("r", "rw=randread\nsize=1m\nbs=64k\niodepth=4");
    let reports = run_on("ram:size=2m", &format!("{write}{read}")).unwrap();
    assert_eq!((reports[0].verified(), reports[1].verified()), (0, 16));
    assert_eq!((reports[1].errors(), reports[1].tally.flows[0].ios), (0, 16));
    let other = job("r", "rw=read\noffset=1m\nsize=1m\nbs=64k");
    let reports = run_on("ram:size=2m", &format!("{write}{other}")).unwrap();
    let (errno, first) = (reports[1].tally.errno, reports[1].first_error().unwrap());
    assert_eq!((errno, reports[1].verified()), (libc::EILSEQ, 0));
    assert!(first.starts_with("verify: offset 1048576: no pattern there"), "{first}");
}

#[test]
fn a_full_device_ends_a_job_that_fills_it_and_fails_another() {
    let drive = "fault:drive=(ram:size=8m),status=enospc,op=write,range=4m-8m";
    let job = |words: &str| run_on(drive, &format!("[j]\nrw=write\nbs=64k\n{words}\n")).unwrap();
    let filled = &job("fill_device=1\niodepth=4")[0];
    assert_eq!((filled.errors(), filled.tally.flows[1].ios), (0, 64));
    let verified = &job("fill_device=1\niodepth=4\nverify=crc32c")[0];
    assert_eq!((verified.errors(), verified.verified()), (0, 64));
    assert_eq!(job("size=8m")[0].tally.errno, libc::ENOSPC);
}

#[test]
fn each_clone_works_on_a_volume_of_its_own_if_there_is_one() {
    let text = b"[j]\nrw=write\nsize=1m\nnumjobs=2\n[k]\nrw=write\nsize=64k\nnumjobs=2\n";
    let file = JobFile::parse("t.fio", text, &MemoryFiles(&[])).unwrap();
    let volumes = [vec![volume("ram:size=1m"), volume("ram:size=1m")], vec![volume("ram:size=1m")]];
    run_jobs(&file, &volumes, &JobSetting::default(), &mut |_, _| ()).unwrap();
    let writes = |volume: &Arc<Volume<Native>>| {
        let ops = volume.disks()[0].stats().ops;
        ops[millrace_block::Op::Write as usize].sectors >> 1
    };
    assert_eq!(volumes[0].iter().map(writes).collect::<Vec<_>>(), [1024, 1024]);
    assert_eq!(writes(&volumes[1][0]), 128);
}

#[test]
fn latency_met_at_any_depth_needs_full_depth_and_at_none_fails() {
    let job = |target: &str| {
        format!(
            "[j]\nrw=randread\nbs=4k\niodepth=16\nlatency_window=1ms\ntime_based\nruntime=1h\n\
             latency_target={target}\nlatency_percentile=0.1\nnorandommap\n"
        )
    };
    let reports = run_on("ram:size=1m", &job("1h")).unwrap();
    assert_eq!((reports[0].depth_found(), reports[0].errors()), (Some((16, true)), 0));
    let reports = run_on("fault:drive=(ram:size=1m),latency=1ms", &job("1us")).unwrap();
    let first = reports[0].first_error().unwrap();
    assert!(first.starts_with("latency_target=1us: fewer than 0.1 % of I/Os"), "{first}");
    assert_eq!(reports[0].tally.errno, libc::ETIMEDOUT);
}

#[test]
fn an_interrupt_ends_jobs_with_what_they_did() {
    let file = b"[j]\nrw=randread\nruntime=1h\ntime_based\nthinktime=1s\n[k]\nstartdelay=1h\n";
    let file = JobFile::parse("t.fio", file, &MemoryFiles(&[])).unwrap();
    let volume = volume("ram:size=4m");
    let setting = JobSetting::default();
    let mut calls = 0;
    let reports =
        run_jobs(&file, &[vec![Arc::clone(&volume)], vec![volume]], &setting, &mut |_, _| {
            calls += 1;
            if calls == 5 {
                setting.interrupt.set();
            }
        });
    assert_eq!(reports.unwrap().0.len(), 2);
}

#[test]
fn what_writes_is_refused_where_a_drive_is_read_only() {
    let image = tempfile::NamedTempFile::new().unwrap();
    image.as_file().set_len(1 << 20).unwrap();
    let drive = format!("file:path={},read-only=on", image.path().display());
    assert_eq!(run_on(&drive, "[j]\nrw=read\n").unwrap()[0].tally.flows[0].ios, 256);
    for rw in ["randwrite", "randrw", "trim"] {
        let refused = run_on(&drive, &format!("[j]\nrw={rw}\n")).unwrap_err().to_string();
        let words = ["t.fio:1: job j: rw: drive ", " is read-only; open it for writing"];
        assert!(words.iter().all(|word| refused.contains(word)), "{refused}");
    }
}

#[test]
fn trims_of_almost_4_gib_need_no_memory() {
    let text = "[j]\nrw=trim\nbs=4294966784\niodepth=65536\nnumber_ios=3\n";
    let reports = run_on("null:size=16g", text).unwrap();
    assert_eq!(reports[0].tally.flows[2].bytes, 3 * 4_294_966_784);
}

#[test]
fn buffers_of_concurrent_jobs_must_fit_into_memory() {
    let memory = memory_bytes().unwrap();
    let depth = memory / 3 / (1 << 20);
    let text = format!("[global]\nbs=1m\niodepth={depth}\nnumber_ios=1\n[j]\n[k]\n");
    let refused = run_on("null:size=1g", &text).unwrap_err().to_string();
    assert!(refused.starts_with("t.fio:6: job k: bs=1048576 "), "{refused}");
    assert!(refused.contains(", with the jobs beside it, "), "{refused}");
    let parted = JobFile::parse(
        "t.fio",
        text.replace("[k]", "[k]\nstonewall").as_bytes(),
        &MemoryFiles(&[]),
    );
    assert!(check_buffers(&parted.unwrap()).is_ok());
}

/// Returns the part of a device of 1 GiB and 1 KiB that a job works on.
fn part_of(words: &str) -> (u64, u64) {
    let text = format!("[j]\n{}\n", words.replace(' ', "\n"));
    let file = JobFile::parse("t.fio", text.as_bytes(), &MemoryFiles(&[])).unwrap();
    let span = span_of(&file.jobs[0], 0, (1 << 30) + 1024).unwrap();
    (span.begin, span.size)
}

#[test]
fn offsets_that_are_shares_are_rounded_up_to_offset_align() {
    let begin = |words| part_of(words).0;
    assert_eq!(begin("offset=10% bs=64k"), 107_413_504);
    assert_eq!(begin("offset=10% bs=64k offset_align=4k"), 107_376_640);
    assert_eq!(begin("offset=10% bs=64k,4k,64k"), 107_376_640, "the shortest of any direction");
    assert_eq!(begin("offset=512 bs=64k offset_align=4k"), 512);
}

#[test]
fn a_size_of_more_than_there_is_is_all_there_is() {
    assert_eq!(part_of("size=200% bs=512"), (0, (1 << 30) + 1024));
    assert_eq!(part_of("offset=1g size=200% bs=512"), (1 << 30, 1024));
}

#[test]
fn a_job_waits_for_the_one_that_it_names_and_not_for_others() {
    let text = "[global]\nnumber_ios=1\n[a]\nthinktime=300ms\nnumber_ios=2\n[b]\nwait_for=a\n\
                [c]\nwait_for=b\nwrite_lat_log=x\n[d]\n";
    let begin = std::time::Instant::now();
    assert_eq!(counts(text), [[2, 0, 0, 0], [1, 0, 0, 0], [1, 0, 0, 0], [1, 0, 0, 0]]);
    assert!(begin.elapsed().as_millis() >= 300);
    // Whoever waits writes what the first has verified by then, or else that fails.
    let text = "[global]\nrw=write\nsize=2m\nverify=crc32c\nnumjobs=1\n[a]\n[b]\nwait_for=a\n";
    let reports = run_on("ram:size=64m", text).unwrap();
    assert!(reports.iter().all(|report| report.tally.verified == 512 && report.errors() == 0));
}

#[test]
fn jobs_of_a_flow_keep_to_their_shares() {
    let text = "[global]\nruntime=300ms\ntime_based\nsize=1m\nflow_sleep=100\n[a]\nflow=1\n\
                [b]\nflow=8\n[c]\nflow_id=1\nflow=1\n";
    let mut seen = Vec::new();
    // Whoever ends last is alone for a moment, which is long on a busy machine.
    let is_fair = (0..5).any(|_| {
        let [a, b, c] = counts(text)[..] else { panic!("three reports") };
        assert!(c[0] > 0, "alone in its flow");
        let share = a[0] as f64 / (a[0] + b[0]) as f64;
        seen.push(share);
        (share - 1.0 / 9.0).abs() < 0.06
    });
    assert!(is_fair, "{seen:?}");
}

#[test]
fn a_rate_of_one_direction_leaves_the_other_free_as_in_fio() {
    for rw in ["randrw", "rw"] {
        let [reads, writes, ..] =
            one(&format!("rw={rw} rate_iops=200, runtime=500ms time_based size=16m"));
        assert!((95..=101).contains(&reads) && writes > 1000, "{rw}: {reads} {writes}");
        let [reads, writes, ..] =
            one(&format!("rw={rw} rate_iops=,200 runtime=500ms time_based size=16m"));
        assert!((95..=101).contains(&writes) && reads > 1000, "{rw}: {reads} {writes}");
    }
}

#[test]
fn every_new_word_goes_with_every_rate_and_mix() {
    let words = [
        "bssplit=4k/48:8k/50:",
        "bsrange=4k-18k",
        "blockalign=16k",
        "offset=10% offset_align=64k",
        "size=200%",
        "random_distribution=zoned:50/5:50/",
        "wait_for=first",
        "flow=3",
        "cpumask=1",
        "percentile_list=50:99",
        "verify=md5",
        "ss=bw_slope buffer_compress_percentage=0 unlink=1",
        "zonemode=strided zonesize=64k zoneskip=64k",
    ];
    let kinds = ["read", "write", "trim", "rw", "randread", "randrw", "randwrite:4", "rw:8k"];
    for word in words {
        for rw in kinds {
            let is_random = rw.starts_with("rand");
            let has_no_meaning = word.starts_with("verify") && !rw.contains('w')
                || word.starts_with("verify") && rw == "trim"
                || word.starts_with("zone") && is_random;
            if has_no_meaning {
                continue;
            }
            for rates in ["", "rate_iops=1m", "rate_iops=1m,", "rate=,1g"] {
                let text = format!("{word} rw={rw} number_ios=100 iodepth=4 do_verify=0 {rates}");
                let text = format!("[first]\nnumber_ios=1\n[j]\n{}\n", text.replace(' ', "\n"));
                let done: u64 = counts(&text)[1][..3].iter().sum();
                assert_eq!(done, 100, "{text}");
            }
        }
    }
}
