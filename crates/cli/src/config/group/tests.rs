//! Tests of groups in configurations: words, and every mistake with its line and remedy.

use std::path::Path;

use super::*;
use crate::config::{ServePlan, load};

fn group(settings: &[(&str, &str)]) -> Result<GroupConfig, String> {
    let mut group = GroupConfig::new("g");
    settings.iter().try_for_each(|(key, word)| set(&mut group, key, word)).map(|()| group)
}

#[test]
fn every_word_is_read_as_it_is_written() {
    for (key, word) in [
        ("parent", "p"),
        ("weight", "1"),
        ("weight", "10000"),
        ("priority", "realtime"),
        ("priority", "idle"),
        ("latency-target", "p99 2ms"),
        ("latency-target", "p99.9 500us"),
        ("latency-target", "p99.99 1s"),
        ("latency-target", "p50 1us"),
        ("latency-target", "mean 1ms"),
        ("iops", "1"),
        ("iops", "20k"),
        ("read-iops", "1m"),
        ("write-iops", "1500"),
        ("bandwidth", "4k"),
        ("read-bandwidth", "100m"),
        ("write-bandwidth", "5000"),
    ] {
        let words = settings(&group(&[(key, word)]).unwrap());
        assert!(words.contains(&(key, word.to_owned())), "{key} {word}: {words:?}");
    }
    let same = |word: &str| group(&[("iops", word)]).unwrap().limits.iops;
    assert_eq!([same("20k"), same("20000"), same("20K")], [Some(20_000); 3]);
    let bandwidth = group(&[("bandwidth", "100m")]).unwrap().limits.bandwidth;
    assert_eq!(bandwidth, Some(100 << 20));
}

#[test]
fn what_is_left_out_has_no_word_and_none_takes_a_limit_away() {
    assert_eq!(settings(&GroupConfig::new("g")), [("weight", "100".to_owned())]);
    let gone =
        group(&[("iops", "5"), ("latency-target", "mean 1ms"), ("parent", "p"), ("burst", "1s")]);
    let mut gone = gone.unwrap();
    assert_eq!(settings(&gone).last().unwrap(), &("burst", "1s".to_owned()));
    for (key, word) in
        [("iops", "none"), ("latency-target", "none"), ("parent", "none"), ("burst", "10ms")]
    {
        set(&mut gone, key, word).unwrap();
        assert_eq!(super::word(&gone, key), word);
    }
    assert_eq!(settings(&gone), [("weight", "100".to_owned())]);
}

#[test]
fn a_wrong_word_says_what_to_write() {
    for (key, word, said) in [
        ("weight", "0", "write a whole number from 1 to 10000"),
        ("weight", "10001", "write a whole number from 1 to 10000"),
        ("weight", "none", "write a whole number"),
        ("priority", "realtim", "did you mean \"realtime\"?"),
        ("latency-target", "2ms", "mean 1ms, p99 2ms, p99.9 500us"),
        ("latency-target", "p99", "mean 1ms, p99 2ms, p99.9 500us"),
        ("latency-target", "p9 1ms", "mean 1ms, p99 2ms, p99.9 500us"),
        ("latency-target", "p99.999 1ms", "mean 1ms, p99 2ms, p99.9 500us"),
        ("latency-target", "p+9 1ms", "mean 1ms, p99 2ms, p99.9 500us"),
        ("latency-target", "p49 1ms", "write a percentile from p50 to p99.99"),
        ("latency-target", "p99 2", "a time needs its unit; write 2s; the range is 1us to 1m"),
        ("latency-target", "p99 61s", "write a time from 1us to 1m"),
        ("iops", "0", "less than one I/O per second; write 1 or more, or \"none\" for no limit"),
        ("iops", "0.5", "the value is not a whole number; write 1, or \"none\" for no limit"),
        ("iops", "20g", "powers of 1000); write 500, 20k or 1m, or \"none\" for no limit"),
        (
            "bandwidth",
            "4095",
            "less than one I/O of 4k per second; write 4k or more, or \"none\" for",
        ),
        ("bandwidth", "x", "write 4096, 64k or 10MB, or \"none\" for no limit"),
        ("bandwidth", "2000t", "write at most 1024t bytes per second, or \"none\" for no limit"),
        ("iops", "1001m", "write at most 1000m (1,000 million), or \"none\" for no limit"),
        ("burst", "5", "a time needs its unit; write 5s; the range is 1ms to 1m"),
        ("burst", "0", "write a time from 1ms to 1m"),
        ("burst", "2m", "write a time from 1ms to 1m"),
        ("wieght", "7", "there is no setting \"wieght\" of groups; did you mean \"weight\"?"),
        ("name", "7", "there is no setting \"name\" of groups"),
    ] {
        let error = group(&[(key, word)]).unwrap_err();
        assert!(error.contains(said), "{key}={word}: {error}");
    }
}

/// A configuration with a drive, a volume, and an export with these lines, and more sections. The
/// export begins in line 7, and its added lines in line 10.
fn whole(export: &str, sections: &str) -> String {
    format!(
        "[[drive]]\nname = \"d\"\nspec = \"null:\"\n[[volume]]\nname = \"v\"\ndrives = [\"d\"]\n\
         [[export]]\nvolume = \"v\"\nnbd = \"unix:s\"\n{export}{sections}"
    )
}

fn plan(text: &str) -> ServePlan {
    load("m.toml", text, Path::new("")).map_err(|problems| problems.to_string()).unwrap()
}

fn problems(text: &str) -> Vec<String> {
    let error = load("m.toml", text, Path::new("")).expect_err("the text is wrong").to_string();
    error.lines().map(ToOwned::to_owned).collect()
}

#[test]
fn groups_and_the_group_of_an_export_are_in_the_plan() {
    let text = whole(
        "group = \"gold\"\ngroup-each = true\n",
        "[[group]]\nname = \"gold\"\nweight = 400\niops = \"20k\"\nbandwidth = \"100m\"\n\
         [[group]]\nname = \"default\"\nread-iops = 7\n",
    );
    let text = text.replace("spec = \"null:\"\n", "spec = \"null:\"\nscheduler = \"fair\"\n");
    let plan = plan(&text);
    let export = &plan.config.exports[0];
    assert_eq!((export.group_name(), export.group_each), ("gold", true));
    let gold = [("weight", "400"), ("iops", "20k"), ("bandwidth", "100m")];
    let gold = GroupConfig { name: "gold".to_owned(), ..group(&gold).unwrap() };
    assert_eq!((&plan.config.groups[0], plan.config.groups[1].limits.read_iops), (&gold, Some(7)));
    assert!(plan.warnings.is_empty(), "{:?}", plan.warnings);
    assert_eq!(millrace::open_groups(&plan.config.groups).unwrap().list().len(), 2);
}

#[test]
fn a_group_in_force_is_printed_as_the_section_that_makes_it() {
    let keys = [("weight", "7"), ("latency-target", "p99.9 500us"), ("iops", "20k")];
    let group = GroupConfig { name: "a \"b\"".to_owned(), ..group(&keys).unwrap() };
    let text = section(&group);
    let expected = "[[group]]\nname = 'a \"b\"'\nweight = 7\nlatency-target = \"p99.9 500us\"\n\
                    iops = \"20k\"\n";
    assert_eq!(text, expected);
    assert_eq!(plan(&whole("group = 'a \"b\"'\n", &text)).config.groups, [group]);
}

#[test]
fn all_mistakes_of_groups_are_told_at_once_with_their_lines() {
    let text = whole(
        "group = \"glod\"\n",
        "[[group]]\nname = \"gold\"\nweight = 0\niops = 0\nbandwith = \"1m\"\n\
         [[group]]\nname = \"gold\"\nparent = \"golden\"\n\
         [[group]]\nname = \"a/1\"\n\
         [[group]]\nname = \"self\"\nparent = \"self\"\n\
         [[group]]\nname = \"default\"\nparent = \"gold\"\n",
    );
    let found = problems(&text);
    let said = [
        ":10: group: there is no group \"glod\"; did you mean \"gold\"?",
        ":13: weight = 0: write a whole number from 1 to 10000",
        ":14: iops = 0: less than one I/O per second; write 1 or more, or \"none\" for no limit",
        ":15: unknown key \"bandwith\" in [[group]]; did you mean \"bandwidth\"?",
        ":17: name = \"gold\": the group at line 12 has this name already; choose another",
        ":18: parent = \"golden\": there is no group \"golden\"; did you mean \"gold\"?",
        ":20: name = \"a/1\": a group has no / in its name",
        ":23: parent = \"self\": a group cannot be its own parent",
        ":26: parent = \"gold\": the default group has no parent and no children",
    ];
    assert_eq!(found.len(), said.len(), "{found:#?}");
    for (found, said) in found.iter().zip(said) {
        assert!(found.starts_with(&format!("m.toml{said}")), "{found}");
    }
}

#[test]
fn a_circle_and_a_third_level_are_told_apart() {
    let tree = |parents: &[(&str, &str)]| {
        let group = |(name, parent): &(&str, &str)| match *parent {
            "" => format!("[[group]]\nname = \"{name}\"\n"),
            parent => format!("[[group]]\nname = \"{name}\"\nparent = \"{parent}\"\n"),
        };
        let found = problems(&whole("", &parents.iter().map(group).collect::<String>()));
        found.join("\n")
    };
    let found = tree(&[("a", "b"), ("b", "c"), ("c", "a")]);
    assert!(
        found.contains(":12: parent = \"b\": these groups form a circle: a -> b -> c -> a; remove"),
        "{found}"
    );
    let found = tree(&[("a", "b"), ("b", "c"), ("c", "")]);
    let said = "m.toml:12: parent = \"b\": group \"b\" already has a parent, \"c\", and groups can \
                be nested only two levels deep; write parent = \"c\"";
    assert_eq!(found, said);
}

#[test]
fn groups_of_clients_are_refused_where_they_cannot_be() {
    let each = "group = \"gold\"\ngroup-each = true\n";
    let gold = "[[group]]\nname = \"gold\"\n";
    let found = problems(&whole("group-each = true\n", ""));
    assert!(found[0].starts_with("m.toml:10: group-each: clients have no groups"), "{found:?}");
    let found = problems(&whole(each, &format!("{gold}parent = \"p\"\n[[group]]\nname = \"p\"\n")));
    assert!(found[0].contains(":11: group-each: group \"gold\" has the parent \"p\""), "{found:?}");
    let child = "[[group]]\nname = \"c\"\nparent = \"gold\"\n";
    let found = problems(&whole(each, &format!("{gold}{child}")));
    assert!(found[0].contains("is the parent of \"c\" (line 15)"), "{found:?}");
    let other = "[[export]]\nvolume = \"v\"\nname = \"w\"\nnbd = \"unix:s\"\ngroup = \"gold\"\n";
    let found = problems(&whole(each, &format!("{other}{gold}")));
    assert!(found[0].contains(":11: group-each: clients of the export of line 16"), "{found:?}");
    let found = problems(&whole("group = \"gold\"\ngroup-each = maybe\n", gold));
    assert_eq!(found.len(), 1, "{found:?}");
}

#[test]
fn a_group_that_nobody_is_in_is_a_warning() {
    let text = whole("", "[[group]]\nname = \"a\"\nparent = \"b\"\n[[group]]\nname = \"b\"\n");
    assert_eq!(plan(&text).warnings, ["m.toml:11: no export names group \"a\""]);
}

#[test]
fn target_with_another_scheduler_warns_with_its_line() {
    let gold = "[[group]]\nname = \"gold\"\nlatency-target = \"p99 2ms\"\n";
    let text = whole("group = \"gold\"\n", gold);
    let line = 1 + text.lines().position(|line| line.starts_with("latency")).expect("it is there");
    let warnings = plan(&text).warnings;
    let [said] = &warnings[..] else { panic!("{warnings:?}") };
    let start =
        format!("m.toml:{line}: group gold: latency-target p99 2ms: nothing keeps it at drive");
    assert!(said.starts_with(&start) && said.contains("scheduler is none"), "{said}");
}

#[test]
fn shares_at_a_cached_volume_are_a_warning_and_limits_are_none() {
    let text = |keys: &str| {
        format!(
            "[[drive]]\nname = \"d\"\nspec = \"null:\"\nscheduler = \"fair\"\n[[volume]]\n\
             name = \"v\"\ndrives = [\"d\"]\n[volume.cache]\nsize = \"8m\"\n[[group]]\n\
             name = \"a\"\n{keys}\n[[export]]\nvolume = \"v\"\nnbd = \"unix:s\"\ngroup = \"a\"\n"
        )
    };
    let said = plan(&text("weight = 300\npriority = \"idle\"")).warnings;
    let begin =
        "m.toml:11: group a: volume v ignores its weight and priority: what the cache reads";
    assert!(said.len() == 1 && said[0].starts_with(begin), "{said:?}");
    assert_eq!(plan(&text("iops = 1000")).warnings, [""; 0]);
    let said = plan(&text("latency-target = \"p99 1us\"")).warnings;
    assert!(said.len() == 1 && said[0].contains("ignores its latency-target: what"), "{said:?}");
}

#[test]
fn weights_that_a_scheduler_ignores_are_a_warning() {
    let said = |scheduler: &str, keys: &str| {
        let text = format!(
            "[[drive]]\nname = \"d\"\nspec = \"null:\"\nscheduler = \"{scheduler}\"\n[[volume]]\n\
             name = \"v\"\ndrives = [\"d\"]\n[[group]]\nname = \"a\"\n{keys}\n[[export]]\n\
             volume = \"v\"\nnbd = \"unix:s\"\ngroup = \"a\"\n"
        );
        plan(&text).warnings.join("\n")
    };
    let both = "weight = 300\npriority = \"idle\"";
    for (scheduler, ignored) in [("none", "weight and priority"), ("deadline", "weight")] {
        let expected = format!(
            "m.toml:9: group a: drive d of volume v ignores its {ignored}, because the drive's \
             scheduler is {scheduler}; set scheduler = \"fair\" there, or `millrace ctl set v \
             scheduler=fair`"
        );
        assert_eq!(said(scheduler, both), expected);
    }
    assert_eq!(said("deadline", "priority = \"idle\""), "");
    let target = said("none", "weight = 300\nlatency-target = \"p99 2ms\"");
    assert!(target.contains("scheduler = \"latency\"") && !target.contains("fair"), "{target}");
    assert_eq!([said("fair", both), said("latency", both), said("none", "iops = 9")], [""; 3]);
}

#[test]
fn settings_that_files_of_a_directory_ignore_are_a_warning() {
    let said = |files: &str| {
        let text = format!(
            "[[group]]\nname = \"a\"\nweight = 300\nlatency-target = \"p99 1ms\"\n[[export]]\n\
             directory = \"/images\"\nnbd = \"unix:s\"\ngroup = \"a\"\nfiles = {{ {files} }}\n"
        );
        plan(&text).warnings
    };
    let weight =
        "m.toml:2: group a: files of /images ignore its weight and latency-target, because";
    let none = said("");
    assert_eq!(
        none,
        [format!(
            "{weight} their scheduler is none; set scheduler = \"latency\" in \
                              `files` of export images"
        )]
    );
    let cached = said("scheduler = \"latency\", cache = { size = \"8m\" }");
    assert!(cached.len() == 1 && cached[0].starts_with(&format!("{weight} they are cached")));
    assert!(said("scheduler = \"fair\"")[0].contains("ignore its latency-target, because"));
    assert_eq!(said("scheduler = \"latency\""), [""; 0]);
}

#[test]
fn what_child_groups_do_not_inherit_is_a_warning() {
    let said = |keys: &str| {
        let text = format!(
            "[[drive]]\nname = \"d\"\nspec = \"null:\"\nscheduler = \"deadline\"\n[[volume]]\n\
             name = \"v\"\ndrives = [\"d\"]\n[[group]]\nname = \"p\"\n{keys}\n[[group]]\nname = \"a\"\n\
             parent = \"p\"\n[[export]]\nvolume = \"v\"\nnbd = \"unix:s\"\ngroup = \"a\"\n"
        );
        plan(&text).warnings
    };
    let keys = said("priority = \"idle\"\nlatency-target = \"p99 1ms\"");
    let expected = "m.toml:9: group p: its child groups (a) ignore the priority and latency-target \
                    of this group; set what they need in each of them";
    assert_eq!(keys, [expected]);
    let [weight] = &said("weight = 300")[..] else { panic!("the weight of a parent counts") };
    assert!(weight.contains("group p: drive d of volume v ignores its weight"), "{weight}");
    assert_eq!(said("iops = 1000"), [""; 0]);
}
