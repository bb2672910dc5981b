//! Second step of loading a configuration: resolves names and checks the rules between sections.
//!
//! This step opens no socket, and no file except sysfs for NUMA nodes.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::path::Path;

use millrace::{Listen, ServeConfig, VolumeConfig};
use millrace_console::words::nearest;

use super::controller;
use super::group::members::GroupRules;
use super::key_lines::KeyLines;
use super::names::SectionNames;
use super::plan::{ListenerPlan, LocatedDrive, PlanLines, ServePlan};
use super::problem::ConfigProblems;
use super::sections::ConfigSections;
use super::unit_notes;
use super::volume::VolumeDraft;
use super::warnings;

pub fn check(file: &str, sections: ConfigSections, problems: &mut ConfigProblems) -> ServePlan {
    let ConfigSections { mut config, daemon, mut lines, drives, volumes, lost, has_exports } =
        sections;
    let names = config.controllers.iter().map(|one| &one.name).zip(&lines.controllers);
    let names = SectionNames::new("controller", names, &lost, problems);
    let controllers = config.controllers.iter().zip(&lines.controllers);
    controller::check(controllers, &names, &drives, problems);
    let names = config.groups.iter().map(|one| &one.name).zip(&lines.groups);
    let names = SectionNames::new("group", names, &lost, problems);
    GroupRules { config: &config, lines: &lines, names: &names }.check(problems);
    let names = volumes.iter().map(|(one, lines)| (&one.config.name, lines));
    let names = SectionNames::new("volume", names, &lost, problems);
    for (export, lines) in config.exports.iter().zip(&lines.exports) {
        if export.on_demand.is_none()
            && let Err(text) = names.find(&export.volume)
        {
            problems.add(lines.at("volume"), format!("volume: {text}"));
        }
    }
    let names = drives.iter().map(|(one, lines)| (&one.name, lines));
    let names = SectionNames::new("drive", names, &lost, problems);
    let mut table = DriveTable { drives: &drives, names, users: vec![None; drives.len()] };
    (config.volumes, lines.drives) = table.assign(&volumes, problems);
    lines.volumes = volumes.iter().map(|(_, lines)| lines.clone()).collect();
    let unused = table.unused();
    let listeners = listeners(&config, &lines, problems);
    for (number, text) in config.directory_problems() {
        problems.add(lines.exports[number].at("directory"), text);
    }
    if !has_exports {
        let text = "nothing is exported; add [[export]] with volume = \"...\" and nbd = \"...\"";
        problems.add(1, text);
    }
    let (file, warnings) = (file.to_owned(), Vec::new());
    let plan = ServePlan { file, config, daemon, lines, listeners, warnings };
    check_guests(&plan, problems);
    let mut warnings = warnings::of(&plan, &unused);
    unit_notes::add(&plan.file, &drives, &mut warnings);
    ServePlan { warnings, ..plan }
}

struct DriveTable<'a> {
    drives: &'a [LocatedDrive],
    names: SectionNames<'a>,
    users: Vec<Option<&'a str>>,
}

impl<'a> DriveTable<'a> {
    /// Assigns to each volume the drives that it names. Returns the volumes, and for each drive the
    /// line numbers of its keys in the configuration.
    fn assign(
        &mut self,
        volumes: &'a [(VolumeDraft, KeyLines)],
        problems: &mut ConfigProblems,
    ) -> (Vec<VolumeConfig>, Vec<KeyLines>) {
        let (mut all, mut drive_lines) = (Vec::new(), Vec::new());
        for (draft, lines) in volumes {
            let mut volume = draft.config.clone();
            for (item, wanted) in draft.drives.iter().enumerate() {
                match self.take(wanted, &draft.config.name) {
                    Ok(Some((drive, lines))) => {
                        drive_lines.push(lines.clone());
                        volume.drives.push(drive.clone());
                    }
                    Ok(None) => {}
                    Err(text) => {
                        problems.add(lines.at_item("drives", item), format!("drives: {text}"));
                    }
                }
            }
            all.push(volume);
        }
        (all, drive_lines)
    }

    fn take(&mut self, wanted: &str, volume: &'a str) -> Result<Option<&'a LocatedDrive>, String> {
        let Some(place) = self.names.find(wanted)? else { return Ok(None) };
        if let Some(user) = self.users[place].replace(volume) {
            self.users[place] = Some(user);
            return Err(format!(
                "drive \"{wanted}\" is in volume \"{user}\" already; list each drive only once, in \
                 one volume"
            ));
        }
        Ok(Some(&self.drives[place]))
    }

    fn unused(&self) -> Vec<&'a LocatedDrive> {
        let unused = self.drives.iter().zip(&self.users).filter(|(_, user)| user.is_none());
        unused.map(|(drive, _)| drive).collect()
    }
}

fn listeners(
    config: &ServeConfig,
    lines: &PlanLines,
    problems: &mut ConfigProblems,
) -> Vec<ListenerPlan> {
    let (mut all, mut places) = (Vec::<(&Listen, Vec<usize>)>::new(), HashMap::new());
    for (number, export) in config.exports.iter().enumerate() {
        for address in &export.nbd {
            let place = *places.entry(address).or_insert(all.len());
            if place == all.len() {
                all.push((address, Vec::new()));
            }
            all[place].1.push(number);
        }
    }
    let mut settings: HashMap<&Listen, &KeyLines> = HashMap::new();
    for (own, lines) in config.listener_settings.iter().zip(&lines.listeners) {
        let (address, line) = (&own.listen, lines.at("address"));
        if let Some(first) = settings.get(address) {
            let first = first.at("address");
            let text = format!("address: {address} has a [[listener]] at line {first} already");
            problems.add(line, text);
        }
        settings.entry(address).or_insert(lines);
        if !places.contains_key(address) {
            let text = address.to_string();
            let names: Vec<String> = all.iter().map(|(one, _)| one.to_string()).collect();
            let like = nearest(&text, names.iter().map(String::as_str));
            problems.add(line, format!("address: no export has nbd = \"{text}\"{like}"));
        }
    }
    let plan = |(address, exports): (&Listen, Vec<usize>)| {
        let line = lines.at_nbd(config, exports[0], address);
        let mut names = HashSet::new();
        for number in &exports {
            let name = &config.exports[*number].name;
            if !names.insert(name) {
                let text = format!(
                    "nbd: an export named \"{name}\" is on this listener already (line {line}); \
                     give this one another name = \"...\" or another listener"
                );
                problems.add(lines.at_nbd(config, *number, address), text);
            }
        }
        let own = settings.get(address).copied();
        let own_tls = own.filter(|own| own.has("tls")).or(Some(&lines.server));
        let of_access = ["mode", "owner", "group", "allow-users", "allow-groups"];
        ListenerPlan {
            address: address.clone(),
            line,
            exports,
            tls: config.tls_of(address).cloned(),
            tls_line: own_tls.and_then(|lines| lines.first(&["tls"])).unwrap_or(line),
            access_line: own.and_then(|lines| lines.first(&of_access)).unwrap_or(line),
        }
    };
    all.into_iter().map(plan).collect()
}

fn check_guests(plan: &ServePlan, problems: &mut ConfigProblems) {
    let nbd = plan.listeners.iter().filter_map(|one| Some((one.unix_path()?, one.line)));
    let mut taken: HashMap<&Path, usize> = nbd.collect();
    for (_, guests, line) in plan.guests() {
        match taken.entry(guests.path()) {
            Entry::Occupied(taken) => {
                let first = taken.get();
                let text = format!(
                    "vhost-user-blk: the socket of line {first}; a virtual disk has a socket of its \
                     own"
                );
                problems.add(line, text);
            }
            Entry::Vacant(free) => drop(free.insert(line)),
        }
    }
}
