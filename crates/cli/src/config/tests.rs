//! Tests of the configuration: every mistake with its line, key and remedy.

mod reference;

use std::path::Path;
use std::time::Duration;

use millrace::{CpuId, Listen};

use super::*;

const DRIVE: &str = "[[drive]]\nname = \"d0\"\nspec = \"null:size=1g\"\n";
const VOLUME: &str = "[[volume]]\nname = \"v\"\ndrives = [\"d0\"]\n";
const EXPORT: &str = "[[export]]\nvolume = \"v\"\nnbd = \"unix:s\"\n";

fn plan(text: &str) -> ServePlan {
    load("m.toml", text, Path::new("conf")).map_err(|problems| problems.to_string()).unwrap()
}

fn problems(text: &str) -> Vec<String> {
    let error = load("m.toml", text, Path::new("")).expect_err("the text is wrong").to_string();
    error.lines().map(ToOwned::to_owned).collect()
}

fn whole(drive: &str, volume: &str, export: &str) -> String {
    format!("{DRIVE}{drive}{VOLUME}{volume}{EXPORT}{export}")
}

#[test]
fn the_smallest_configuration_has_defaults() {
    let plan = plan(&whole("", "", ""));
    assert_eq!(plan.config.volumes[0].layout, millrace_block::Layout::Linear);
    assert_eq!(plan.config.exports[0].name, "v");
    assert_eq!(plan.listeners[0].address, Listen::Unix("conf/s".into()));
    assert_eq!(plan.config.volumes[0].drives[0].options, millrace::DriveOptions::default());
    assert!(plan.warnings.is_empty());
}

#[test]
fn one_drive_is_linear_by_default_and_several_are_a_stripe() {
    let layout = |volume: &str| plan(&whole("", volume, "")).config.volumes[0].layout;
    let stripe = |chunk_sectors| millrace_block::Layout::Stripe { chunk_sectors };
    assert_eq!(layout(""), millrace_block::Layout::Linear);
    assert_eq!(layout("layout = \"stripe\"\n"), stripe(128));
    assert_eq!(layout("chunk = \"4k\"\n"), stripe(8));
    let two = whole(&DRIVE.replace("d0", "d1"), "", "").replace("[\"d0\"]", "[\"d0\", \"d1\"]");
    assert_eq!(plan(&two).config.volumes[0].layout, stripe(128));
}

#[test]
fn drive_says_what_it_does_in_second_and_layer_gets_costs() {
    use millrace::{CostModel, OpCost, OpRates};
    let cost = |text: &str| plan(&whole(text, "", "")).config.volumes[0].drives[0].options.cost;
    let rates = |random_iops, sequential_iops, bytes_per_s| {
        OpCost::from_rates(&OpRates { random_iops, sequential_iops, bytes_per_s })
    };
    let dotted = "cost.read-iops = 98000\ncost.read-bandwidth = 540000000\n\
                  cost.write-iops = 90000\ncost.write-sequential-iops = 95000\n\
                  cost.write-bandwidth = \"512m\"\n";
    let expected = CostModel {
        read: rates(98_000, 98_000, 540_000_000),
        write: rates(90_000, 95_000, 512 << 20),
    };
    assert_eq!((cost(dotted), cost("")), (expected, CostModel::default()));
    let inline = "cost = { read-iops = 98000, read-bandwidth = 540000000, write-iops = 90000, \
                  write-sequential-iops = 95000, write-bandwidth = \"512m\" }\n";
    assert_eq!(cost(inline), expected);
    let found = problems(&whole("cost.read-iop = 1\ncost.write-iops = 0\n", "", ""));
    let missing = "m.toml:4: cost of [[drive]]: add read-iops, read-bandwidth, write-bandwidth; \
                   millrace-lab bench --calibrate DRIVE measures and prints them";
    let range = "m.toml:5: cost.write-iops = 0: write a number of I/Os per second from 1 to 1000m \
                 (1,000 million)";
    assert!(found.contains(&missing.to_owned()) && found.contains(&range.to_owned()), "{found:?}");
    let like = "unknown key \"read-iop\" in cost of [[drive]]; did you mean \"read-iops\"?";
    assert!(found.iter().any(|problem| problem.contains(like)), "{found:?}");
    let found = problems(&whole("cost = 5\n", "", ""));
    let text = "m.toml:4: cost of [[drive]]: must be a table of keys; write cost.KEY = VALUE";
    assert_eq!(found, [text]);
    let found = problems(&whole(&dotted.replace("512m", "4095"), "", ""));
    let text = "m.toml:8: cost.write-bandwidth = \"4095\": write a number of bytes per second \
                from 4k to 1024t";
    assert_eq!(found, [text]);
}

#[test]
fn values_of_drivers_are_checked_with_rest_at_line_of_their_key() {
    let drive = |keys: &str| {
        let text = format!("[[drive]]\nname = \"d0\"\ndriver = \"file\"\n{keys}{VOLUME}{EXPORT}");
        problems(&text)
    };
    let found = drive("path = \"x\"\nsize = \"1x\"\n");
    assert!(found[0].starts_with("m.toml:5: size = \"1x\": a size is"), "{found:?}");
    let found = drive("path = \"\"\n");
    assert!(found[0].starts_with("m.toml:4: path = \"\": write"), "{found:?}");
    let found = drive("path = \"x\"\ngrow = true\n");
    assert_eq!(found, ["m.toml:5: grow = \"on\": it goes with size="]);
    let text = whole("", "", "").replace("null:size=1g", "fault:drive=[null:size=1g]");
    let found = problems(&text);
    assert_eq!(found.len(), 1);
    let said = "write the inner drive's spec in parentheses, as in drive=(ram:size=1g)";
    assert!(found[0].starts_with("m.toml:3: ") && found[0].ends_with(said), "{found:?}");
}

#[test]
fn queue_settings_of_a_drive_go_before_those_of_its_volume() {
    let volume = "scheduler = \"fair\"\nqueue-depth = 7\n";
    let plan = plan(&whole("scheduler = \"deadline\"\n", volume, ""));
    let options = plan.config.volumes[0].drives[0].options;
    assert_eq!(options.scheduler, millrace::SchedulerKind::Deadline);
    assert_eq!(options.queue_depth, Some(7));
}

#[test]
fn laboratory_settings_are_refused_with_their_command() {
    let stack = "stack: a setting of `millrace-lab bench --stack`; every drive of the daemon has \
                 stack mq: delete this key";
    for word in ["mq", "sq", "raw", "none"] {
        let key = format!("stack = \"{word}\"\n");
        assert_eq!(problems(&whole(&key, "", "")), [format!("m.toml:4: {stack}")]);
        assert_eq!(problems(&whole("", &key, "")), [format!("m.toml:7: {stack}")]);
    }
    let serving = "serving = \"per-volume\": a setting of `millrace-lab bench --serving`; write \
                   inline, per-drive or auto";
    let found = problems(&whole("", "serving = \"per-volume\"\n", ""));
    assert_eq!(found, [format!("m.toml:7: {serving}")]);
}

#[test]
fn unknown_scheduler_is_answered_with_all_known_ones() {
    let found = problems(&whole("scheduler = \"deadlin\"\n", "", ""));
    let text = "m.toml:4: unknown scheduler \"deadlin\"; choose none, deadline, fair or latency; \
                did you mean \"deadline\"?";
    assert_eq!(found, [text]);
}

#[test]
fn unknown_keys_name_the_nearest_known_one() {
    let found = problems(&whole("schedulr = \"none\"\n", "chnk = \"64k\"\n", "readonly = true\n"));
    assert_eq!(found.len(), 3);
    assert!(found[0].starts_with("m.toml:4: unknown key \"schedulr\" in [[drive]]; did you mean"));
    let volume = "m.toml:8: unknown key \"chnk\" in [[volume]]; did you mean \"chunk\"? (known: ";
    assert!(found[1].starts_with(volume), "{}", found[1]);
    assert!(found[2].contains("did you mean \"read-only\"?"), "{}", found[2]);
    let found = problems(&format!("{}[sever]\nthreads = 1\n", whole("", "", "")));
    assert!(found[0].contains("unknown key \"sever\" in the file; did you mean \"server\"?"));
}

#[test]
fn a_driver_spelled_out_takes_its_own_keys_and_those_of_a_drive() {
    let text = "[[drive]]\nname = \"d0\"\ndriver = \"null\"\nsize = \"1g\"\nqueue-depth = 4\n";
    let rest = format!("{VOLUME}{EXPORT}");
    assert_eq!(
        plan(&format!("{text}{rest}")).config.volumes[0].drives[0].spec.to_string(),
        "null:size=1g"
    );
    let found = problems(&format!("{text}sise = \"1g\"\n{rest}"));
    assert!(found[0].starts_with("m.toml:6: unknown key \"sise\""), "{}", found[0]);
    assert!(found[0].contains("did you mean \"size\"?"), "{}", found[0]);
    let image = "[[drive]]\nname = \"d0\"\ndriver = \"rbd\"\npool = \"p\"\n";
    let found = problems(&format!("{image}{rest}"));
    assert!(found[0].contains("image = \"POOL/IMAGE\""), "{}", found[0]);
    let found = problems(&format!("{}{rest}", text.replace("\"null\"", "\"nul\"")));
    assert!(found[0].starts_with("m.toml:3: unknown driver \"nul\""), "{}", found[0]);
}

#[test]
fn numbers_and_switches_are_as_good_as_their_text() {
    let text = "[[drive]]\nname = \"d0\"\ndriver = \"file\"\npath = \"x\"\nsize = 0x1000\n\
                direct = false\n";
    let spec = &plan(&format!("{text}{VOLUME}{EXPORT}")).config.volumes[0].drives[0].spec;
    assert_eq!(spec.to_string(), "file:path=conf/x,size=4096,direct=off");
}

#[test]
fn names_with_control_characters_are_refused_and_shown_escaped() {
    let forged = "a\\nready 7";
    let text = whole("", "", &format!("name = \"{forged}\"\n{EXPORT}"));
    let said = "is a control character; remove it from the name";
    assert_eq!(problems(&text), [format!("m.toml:10: name = \"{forged}\": \\n {said}")]);
    let escape = "\\u{1b}";
    let raw = "\\u001b";
    let text = format!("{SCU}{}", whole("", "", ""));
    for (name, line) in [("scu", 2), ("d0", 5)] {
        let text = text.replacen(&format!("\"{name}\""), &format!("\"{name}{raw}\""), 1);
        let found = format!("m.toml:{line}: name = \"{name}{escape}\": {escape} {said}");
        assert_eq!(problems(&text), [found]);
    }
    let text = text.replacen("name = \"v\"", "name = \"v\\t\"", 1);
    assert_eq!(problems(&text), [format!("m.toml:8: name = \"v\\t\": \\t {said}")]);
    // Other messages contain no raw control characters either.
    let found = problems(&whole("", "", "\"\\nready\" = 1\n"));
    assert!(found.len() == 1 && found[0].contains("unknown key \"\\nready\""), "{found:?}");
}

#[test]
fn names_are_unique_and_drives_are_in_one_volume_once() {
    let text = format!("{DRIVE}{DRIVE}{VOLUME}{}{EXPORT}", VOLUME.replace("\"v\"", "\"w\""));
    let found = problems(&text);
    assert!(found[0].starts_with("m.toml:5: name = \"d0\": the drive at line 2 has this name"));
    assert!(found[1].starts_with("m.toml:12: drives: drive \"d0\" is in volume \"v\" already"));
    let twice = VOLUME.replace("\"d0\"", "\"d0\",\n  \"d0\"");
    let found = problems(&format!("{DRIVE}{twice}{EXPORT}"));
    assert!(found[0].starts_with("m.toml:7: drives: drive \"d0\" is in volume"), "{}", found[0]);
}

#[test]
fn drives_and_volumes_that_are_missing_name_the_nearest() {
    let text = whole("", "", "").replace("[\"d0\"]", "[\"d1\"]").replace("= \"v\"", "= \"vol\"");
    let text = text.replacen("volume = \"vol\"", "volume = \"vil\"", 1);
    let found = problems(&text);
    assert_eq!(found[0], "m.toml:6: drives: there is no drive \"d1\"; did you mean \"d0\"?");
    assert_eq!(found[1], "m.toml:8: volume: there is no volume \"vil\"; did you mean \"vol\"?");
}

#[test]
fn what_names_a_section_that_is_wrong_is_not_wrong_itself() {
    let text = whole("", "", "");
    let found = problems(&text.replace("null:", "nul:"));
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].starts_with("m.toml:3: unknown driver \"nul\""), "{}", found[0]);
    let found = problems(&text.replace("[[drive]]", "[[driv]]"));
    assert!(found.len() == 1 && found[0].contains("unknown key \"driv\""), "{found:?}");
    let found = problems(&text.replace("drives = [\"d0\"]", "drives = []"));
    assert!(found.len() == 1 && found[0].contains("no drives are named"), "{found:?}");
}

#[test]
fn mistakes_of_all_kinds_are_told_in_one_round() {
    let text = "[[drvie]]\nname = \"d9\"\nspec = \"null\"\n\
                [[drive]]\nname = \"d0\"\nspec = \"nul:\"\n\
                [[drive]]\nname = \"d1\"\nspec = \"ram:size=x,block=3\"\ncontroller = \"c\"\n\
                [[volume]]\nname = \"v\"\ndrives = [\"d0\", \"d1\", \"d2\", \"d9\"]\nchunk = \"60k\"\n\
                [[export]]\nvolume = \"w\"\nnbd = \"unix:s\"\nname = \"e\"\n\
                [[export]]\nvolume = \"v\"\nnbd = \"unix:s\"\nname = \"e\"\n";
    let found = problems(text);
    let expected = [
        "m.toml:1: unknown key \"drvie\"",
        "m.toml:6: unknown driver \"nul\"",
        "m.toml:9: driver ram: size=x is invalid",
        "m.toml:10: controller: there is no controller \"c\"",
        "m.toml:13: drives: there is no drive \"d2\"",
        "m.toml:14: chunk = \"60k\"",
        "m.toml:16: volume: there is no volume \"w\"",
        "m.toml:21: nbd: an export named \"e\" is on this listener already",
    ];
    assert_eq!(found.len(), expected.len(), "{found:#?}");
    for (found, expected) in found.iter().zip(expected) {
        assert!(found.starts_with(expected), "{found}");
    }
    let both = whole("", "", "").replace("null:size=1g", "null:depth=0,block=3");
    let found = problems(&both);
    assert!(found.len() == 2 && found[1].contains("block=3 is invalid"), "{found:?}");
}

#[test]
fn section_with_a_wrong_value_is_still_cross_checked() {
    let text = format!("{SCU}node = 4000\n{SCU}tags = 5\n").replacen("250", "0", 1);
    let text = format!("{}{}", text.replacen("tags = 250\n", "", 1), whole("", "chunk = 1\n", ""));
    let export = "[[export]]\nvolume = \"w\"\nname = 5\nnbd = \"unix:s\"\n";
    let found = problems(&format!("{text}{export}"));
    let expected = [
        "m.toml:3: tags = 0: write",
        "m.toml:4: node: controller scu: there is no NUMA node 4000",
        "m.toml:6: name = \"scu\": the controller at line 2 has this name",
        "m.toml:14: chunk = 1: a chunk is a power of two",
        "m.toml:19: volume: there is no volume \"w\"",
        "m.toml:20: name = 5: write a string, such as \"5\"",
    ];
    assert_eq!(found.len(), expected.len(), "{found:#?}");
    for (found, expected) in found.iter().zip(expected) {
        assert!(found.starts_with(expected), "{found}");
    }
}

#[test]
fn wrong_value_is_shown_with_its_rule_and_a_valid_one() {
    let text = "[server]\ncontrol-mode = 600\nbackend = \"kqueue\"\n\
                [[drive]]\nname = \"d0\"\ndriver = \"ram\"\nsize = 1000\ntimeout = 10\n\
                scheduler = \"bfq\"\n[[volume]]\nname = \"v\"\ndrives = [\"d0\"]\n\
                layout = \"raid5\"\n[[export]]\nvolume = \"v\"\nnbd = \"unix:s\"\n";
    let expected = [
        "m.toml:2: control-mode = 600: this number is not octal; write the mode as 0o660, or \
         \"0660\"",
        "m.toml:3: unknown backend \"kqueue\"; choose auto, io_uring or epoll",
        "m.toml:7: size = 1000: a size is a multiple of 512 bytes; write 1024, for example",
        "m.toml:8: timeout = 10: a time needs its unit; write 10s; the range is 0 to 24h",
        "m.toml:9: unknown scheduler \"bfq\"; choose none, deadline, fair or latency",
        "m.toml:13: unknown layout \"raid5\"; choose stripe or linear",
    ];
    assert_eq!(problems(text), expected);
}

#[test]
fn a_plain_path_and_an_nbd_url_are_specs() {
    let spec = |text: &str| {
        let text = whole("", "", "").replace("null:size=1g", text);
        plan(&text).config.volumes[0].drives[0].spec.to_string()
    };
    assert_eq!(spec("a.img"), "file:path=conf/a.img");
    assert_eq!(spec("/x/a.img"), "file:path=/x/a.img");
    assert_eq!(spec("nbd://localhost/x"), "nbd:uri=nbd://localhost/x");
    assert_eq!(spec("nbd+unix:///x?socket=/s"), "nbd:uri=nbd+unix:///x?socket=/s");
}

#[test]
fn a_key_below_a_wrong_section_is_told_where_it_belongs() {
    let found = problems(&whole("group-each = true\n", "tls-allow = \"a\"\n", "tags = 7\n"));
    for (found, section) in found.iter().zip(["[[export]]", "[[export]]", "[[controller]]"]) {
        assert!(found.contains(&format!("; it belongs to {section} (known: ")), "{found}");
    }
    assert_eq!(found.len(), 3);
    let found = problems(&whole("", "", "").replace("[[drive]]", "[[drives]]"));
    assert!(found[0].contains("; did you mean \"drive\"? (known: "), "{found:?}");
}

#[test]
fn wrong_values_say_what_may_stand_there() {
    let volume = "chunk = \"60k\"\nscheduler = \"mq\"\nserving = \"per-disk\"\ntimeout = 5\n";
    let found = problems(&whole("", volume, "read-only = \"yes\"\n"));
    let chunk = "m.toml:7: chunk = \"60k\": a chunk is a power of two from 4k to 2g, such as 64k";
    assert_eq!(found[0], chunk);
    assert_eq!(
        found[1],
        "m.toml:8: unknown scheduler \"mq\"; choose none, deadline, fair or latency"
    );
    let serving = "m.toml:9: unknown serving mode \"per-disk\"; choose inline, per-drive or auto";
    assert!(found[2].starts_with(serving), "{}", found[2]);
    assert!(found[3].starts_with("m.toml:10: timeout = 5: a time needs its unit; write 5s"));
    assert!(
        found[4].starts_with("m.toml:14: read-only = \"yes\": write true or false"),
        "{}",
        found[4]
    );
}

#[test]
fn values_that_earlier_builds_read_differently_have_a_note() {
    let warnings = |spec: &str| plan(&whole("", "", "").replace("null:size=1g", spec)).warnings;
    let bandwidth = "m.toml:3: note: read-bandwidth 500m is 500 MiB/s (524288000 bytes/s); earlier \
                     builds read it as 500000000 bytes/s; write 500MB for that";
    assert_eq!(warnings("model:read-bandwidth=500m"), [bandwidth]);
    assert_eq!(warnings("fault:drive=(model:read-bandwidth=500m)"), [bandwidth]);
    let size = "m.toml:3: note: size 16MB is 15.3 MiB (16000000 bytes); earlier builds read it as \
                16777216 bytes; write 16MiB for that";
    assert_eq!(warnings("null:size=16MB"), [size]);
    let same = "model:size=16m,buffer=512B,read-bandwidth=500MB,write-bandwidth=4096,page=8KiB";
    assert_eq!(warnings(same), [""; 0]);
}

#[test]
fn two_exports_of_one_name_on_one_listener_clash() {
    let found = problems(&whole("", "", EXPORT));
    assert!(found[0].starts_with("m.toml:12: nbd: an export named \"v\" is on this listener"));
    let other = EXPORT.replace("\"unix:s\"", "[\"unix:s\", \"tcp::0\"]\nname = \"w\"");
    let plan = plan(&whole("", "", &other));
    assert_eq!(plan.listeners.iter().map(|l| l.exports.len()).collect::<Vec<_>>(), [2, 1]);
}

#[test]
fn what_nobody_can_reach_is_a_warning() {
    let spare = "[[drive]]\nname = \"d1\"\nspec = \"null:\"\n";
    let volume = "[[drive]]\nname = \"d2\"\nspec = \"null:\"\n[[volume]]\nname = \"w\"\n\
                  drives = [\"d2\"]\n";
    let plan = plan(&whole(spare, volume, ""));
    assert_eq!(plan.warnings.len(), 2);
    assert!(plan.warnings[0].contains("m.toml:5: drive \"d1\" belongs to no volume"));
    assert!(plan.warnings[1].contains("no export names volume \"w\""));
}

#[test]
fn misspelt_spec_is_named_beside_the_missing_one() {
    let found = problems("[[drive]]\nname = \"d\"\nsped = \"ram:size=1m\"\n");
    assert!(found[0].starts_with("m.toml:1: [[drive]]: add spec"), "{found:?}");
    let unknown = "m.toml:3: unknown key \"sped\" in [[drive]]; did you mean \"spec\"?";
    assert!(found.iter().any(|problem| problem.starts_with(unknown)), "{found:?}");
}

#[test]
fn sections_that_lack_something_say_what() {
    let found = problems("[[drive]]\n[[volume]]\n[[export]]\n");
    let expected = [
        "m.toml:1: [[drive]]: the name is missing; add name = \"...\"",
        "m.toml:1: [[drive]]: add spec = \"driver:key=value,...\" or driver = \"...\"",
        "m.toml:2: [[volume]]: the name is missing; add name = \"...\"",
        "m.toml:2: [[volume]]: no drives are named; add drives = [\"...\"]",
        "m.toml:3: [[export]]: no volume is named; add volume = \"...\", or directory = \"...\"",
        "m.toml:3: [[export]]: no listener is given; add nbd = \"unix:PATH\", or vhost-user-blk \
         for virtual machines",
    ];
    assert_eq!(found, expected);
    assert_eq!(problems("").len(), 1);
    let found = problems("[drive]\nname = \"x\"\n");
    assert_eq!(found[0], "m.toml:1: drive is a list of sections: write [[drive]]");
}

#[test]
fn a_text_that_is_no_toml_says_where() {
    let found = problems("[[drive]]\nname = d0\n");
    assert!(found[0].starts_with("m.toml:2: not valid TOML: "), "{}", found[0]);
    let found = problems("[[drive]]\nname = \"a\"\nname = \"b\"\n");
    assert!(found[0].starts_with("m.toml:3: not valid TOML: duplicate key"), "{}", found[0]);
    let found = problems("[volume.cache]\nsize = \"1m\"\n[[volume]]\nname = \"v\"\n");
    let what = "; put [volume.cache] below the [[volume]] that it belongs to";
    assert!(found[0].starts_with("m.toml:3: ") && found[0].contains(what), "{}", found[0]);
}

#[test]
fn the_server_section_is_checked() {
    let server = "[server]\nthreads = 2\ncpus = [0, 0]\nbackend = \"epoll\"\nmemory-max = \"64m\"\n\
                  connections-max = 9\nhandshake-timeout = \"5s\"\nspin = \"20us\"\n";
    let text = format!("{}{server}", whole("", "", ""));
    let server = plan(&text).config.server;
    assert_eq!(
        (server.threads, server.cpus, server.spin),
        (2, vec![CpuId(0); 2], Some(Duration::from_micros(20)))
    );
    let found = problems(&text.replace("threads = 2", "threads = 0"));
    assert!(found[0].ends_with("threads = 0: write a whole number from 1 to 1024"));
    let long = "18446744073s";
    let found = problems(&text.replace("5s", long).replace("20us", long));
    assert!(found[0].ends_with("write a time from 1ms to 1h"), "{found:?}");
    assert!(
        found[1].ends_with("spin = \"18446744073s\": write a time from 0 to 1s, or auto"),
        "{found:?}"
    );
    let auto = text.replace("20us", "auto");
    assert_eq!(plan(&auto).config.server.spin, None);
    let found = problems(&text.replace("64m", "1k").replace("[0, 0]", "[0, 65535]"));
    let cpu = ": cpus: 65535: this process is not allowed to run on this CPU";
    assert!(found[0].contains(cpu), "{found:?}");
    assert!(found[1].contains(": memory-max = \"1k\": write a size of 64m or more"), "{found:?}");
}

const SCU: &str = "[[controller]]\nname = \"scu\"\ntags = 250\n";

#[test]
fn drives_name_their_controller_at_a_key_or_in_their_spec() {
    let key = format!("{SCU}{}", whole("controller = \"scu\"\n", "", ""));
    let spec = format!("{SCU}{}", whole("", "", "").replace("\"null:", "\"null@scu:"));
    for text in [key, spec] {
        let plan = plan(&text);
        assert_eq!(plan.config.volumes[0].drives[0].spec.to_string(), "null@scu:size=1g");
        let controller = &plan.config.controllers[0];
        assert_eq!((controller.tags, controller.node), (250, None));
        assert_eq!(controller.sharing, millrace_block::Sharing::Controller);
        assert!(plan.warnings.is_empty());
    }
    let settings = "sharing = \"drive\"\nnode = 0\n";
    let plan = plan(&format!("{SCU}{settings}{}", whole("controller = \"scu\"\n", "", "")));
    let controller = &plan.config.controllers[0];
    assert_eq!(controller.sharing, millrace_block::Sharing::Drive);
    assert_eq!(controller.node, Some(millrace_machine::NodeId(0)));
}

#[test]
fn a_controller_that_is_missing_names_the_nearest() {
    let found = problems(&format!("{SCU}{}", whole("controller = \"scv\"\n", "", "")));
    let line = "m.toml:7: controller: there is no controller \"scv\"; did you mean \"scu\"?";
    assert_eq!(found, [line]);
    let found = problems(&whole("controller = \"hba\"\n", "", ""));
    let line = "m.toml:4: controller: there is no controller \"hba\"; add [[controller]] with this \
                name";
    assert_eq!(found, [line]);
}

#[test]
fn controllers_are_checked_each_with_its_line() {
    let text = |more: &str| format!("{SCU}{more}{}", whole("controller = \"scu\"\n", "", ""));
    let found = problems(&text(SCU));
    assert!(found[0].starts_with("m.toml:5: name = \"scu\": the controller at line 2 has this"));
    let found = problems(&text("sharing = \"drives\"\nnode = 4000\nshare = 1\n"));
    let sharing = "m.toml:4: unknown tag sharing \"drives\"; choose queue, drive or controller; did \
                   you mean \"drive\"?";
    assert_eq!(found[0], sharing);
    assert!(found[1].starts_with("m.toml:5: node: controller scu: there is no NUMA node 4000: "));
    assert!(
        found[2].contains("unknown key \"share\" in [[controller]]; did you mean \"sharing\"?")
    );
    let found = problems(&text("").replace("250", "65537"));
    assert_eq!(found[0], "m.toml:3: tags = 65537: write a whole number from 1 to 65536");
    let found = problems(&text("").replace("tags = 250\n", ""));
    assert!(found[0].starts_with("m.toml:1: [[controller]]: tags is missing; add"), "{}", found[0]);
    let both = text("").replace("\"null:", "\"null@hba:");
    assert!(problems(&both)[0].contains("the spec names the controller hba after its @; remove"));
}

#[test]
fn a_controller_that_no_drive_names_is_a_warning() {
    let plan = plan(&format!("{SCU}{}", whole("", "", "")));
    assert_eq!(plan.warnings, ["m.toml:2: no drive names controller \"scu\""]);
}

#[test]
fn modelled_controller_is_told_from_one_that_layer_knows() {
    let drive = "[[drive]]\nname = \"d0\"\ndriver = \"model\"\ncontroller = \"scu\"\n";
    let rest = format!("{VOLUME}{EXPORT}{SCU}");
    assert_eq!(
        plan(&format!("{drive}{rest}")).config.volumes[0].drives[0].spec.to_string(),
        "model@scu:"
    );
    let found = problems(&format!("{drive}controller-tags = 5\n{rest}"));
    assert!(found[0].starts_with("m.toml:5: controller-tags is of a modelled controller"));
    assert!(found[0].contains("spec = \"model:controller=NAME,controller-tags=5,...\""));
    let spec = "spec = \"model@scu:controller=x,controller-tags=5\"\n";
    let text = format!("[[drive]]\nname = \"d0\"\n{spec}{rest}");
    assert_eq!(plan(&text).config.volumes[0].drives[0].spec.get("controller"), Some("x"));
}

#[test]
fn an_export_to_virtual_machines_needs_nothing_but_its_socket() {
    let plan =
        plan(&format!("{DRIVE}{VOLUME}[[export]]\nvolume = \"v\"\nvhost-user-blk = \"unix:m\"\n"));
    let vhost = plan.config.exports[0].guests.as_ref().unwrap();
    assert_eq!(vhost.path(), Path::new("conf/m"));
    assert!(vhost.queues >= 16 && vhost.event_idx);
    assert_eq!(vhost.cpus, [], "nothing is pinned unless `cpus` says so");
    assert!(plan.listeners.is_empty());
}

#[test]
fn memory_of_guests_is_not_pinned_whatever_an_older_file_says() {
    let plan = plan(&whole("", "", "vhost-user-blk = \"unix:m\"\npin-memory = true\n"));
    let [said] = &plan.warnings[..] else { panic!("{:?}", plan.warnings) };
    assert!(said.starts_with("m.toml:11: pin-memory has no effect any more"), "{said}");
    assert!(said.contains("a balloon or virtio-mem"), "{said}");
}

#[test]
fn keys_for_virtual_machines_are_checked() {
    let keys = "vhost-user-blk = \"unix:m\"\nqueues = 2\nthreads = \"shared\"\nserial = \"disk-1\"\n\
                poll-max = \"0\"\nbatch-wait = \"5us\"\nsocket-mode = \"0660\"\n";
    let vhost = plan(&whole("", "", keys)).config.exports[0].guests.clone().unwrap();
    assert_eq!((vhost.queues, vhost.thread_count(), vhost.cpus.len()), (2, 1, 0));
    assert_eq!((vhost.poll_max, vhost.batch_wait), (Duration::ZERO, Duration::from_micros(5)));
    let found = |keys: &str| problems(&whole("", "", keys)).join("; ");
    let wrong = found("vhost-user-blk = \"tcp:7\"\n");
    assert_eq!(wrong, "m.toml:10: vhost-user-blk = \"tcp:7\": write \"unix:PATH\"");
    let alone = "[[export]]\nvolume = \"v\"\nvhost-user-blk = \"m\"\n";
    let wrong = problems(&format!("{DRIVE}{VOLUME}{alone}"));
    assert_eq!(wrong, ["m.toml:9: vhost-user-blk = \"m\": write \"unix:PATH\""]);
    let wrong = found("queues = 2\n");
    assert!(wrong.contains("m.toml:10: queues: valid only with vhost-user-blk"), "{wrong}");
    let wrong = found("vhost-user-blk = \"unix:m\"\nqueues = 257\n");
    assert!(wrong.contains("write a whole number from 1 to 256"), "{wrong}");
    let wrong = found("vhost-user-blk = \"unix:m\"\nthreads = \"queues\"\n");
    assert!(wrong.ends_with("or the number of threads, from 1 to 256"), "{wrong}");
    let wrong = found("vhost-user-blk = \"unix:m\"\ncpus = [9999]\n");
    assert!(
        wrong.contains("m.toml:11: cpus: 9999: this process is not allowed to run on this CPU; it"),
        "{wrong}"
    );
    let wrong = found("vhost-user-blk = \"unix:m\"\nsocket-mode = \"rw\"\n");
    assert!(wrong.contains("octal digits"), "{wrong}");
    let wrong = found("vhost-user-blk = \"unix:s\"\n");
    assert!(wrong.contains("a virtual disk has a socket of its own"), "{wrong}");
    let wrong = found("vhost-user-blk = \"unix:m\"\nrole = \"client\"\nsocket-mode = \"0660\"\n");
    assert!(wrong.contains("the frontend owns the socket"), "{wrong}");
}

#[test]
fn the_packaged_example_is_valid_where_its_group_is_there() {
    let text = include_str!("../../../../docs/example.toml");
    let group = "\"millrace-monitor\"";
    assert!(text.contains(&format!("\ncontrol-group = {group}\n")));
    let plan = plan(&text.replace(group, "7").replace("\"millrace-admin\"", "8"));
    assert_eq!((plan.daemon.control_access.group, plan.warnings), (Some(7), Vec::new()));
}
