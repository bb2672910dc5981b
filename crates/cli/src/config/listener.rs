//! `[[listener]]` sections, TLS settings, and access to Unix sockets.
//!
//! User and group names are resolved to numbers here; certificates are read only at the start.

use std::path::{Path, PathBuf};

use millrace::{
    AllowedPeers, Identity, Listen, ListenerConfig, ListenerTls, ServerFiles, SocketAccess,
    TlsConfig,
};
use nix::unistd::{Group, User};

use super::document::{KeyReader, KeyValue, Section, key, list};
use super::key_lines::KeyLines;
use super::words;

pub const KEYS: &[KeyReader<ListenerConfig>] = &[
    key("address", |to, at| at.path(&mut to.listen, words::address)),
    key("mode", |to, at| at.digits(&mut to.access.mode, mode)),
    key("owner", |to, at| at.some(&mut to.access.owner, user)),
    key("group", |to, at| at.some(&mut to.access.group, group)),
    list("allow-users", |to, at| at.list(&mut allow(&mut to.access).users, user)),
    list("allow-groups", |to, at| at.list(&mut allow(&mut to.access).groups, group)),
    key("tls", |to, at| match at.is_table() {
        true => to.tls = tls(at).map_or(ListenerTls::Off, ListenerTls::Own),
        false => at.word(&mut to.tls, |text| match text {
            "off" => Ok(ListenerTls::Off),
            _ => Err("write \"off\", or { certificate = \"...\", key = \"...\" }".to_owned()),
        }),
    }),
];

const TLS: &[KeyReader<TlsConfig>] = &[
    key("certificate", |to, at| at.path(&mut to.files.identity.certificate, pem_file)),
    key("key", |to, at| at.path(&mut to.files.identity.key, pem_file)),
    key("client-ca", |to, at| at.path(&mut to.files.client_ca, pem_file)),
    key("required", |to, at| at.flag(&mut to.required)),
];

pub fn read(mut section: Section<'_>) -> Option<(ListenerConfig, KeyLines)> {
    let mut config = ListenerConfig::new(Listen::Unix(PathBuf::new()));
    section.read(KEYS, &mut config);
    if !section.lines.has("address") {
        section.missing("this listener has no address; set address = \"...\" to the value of an export's nbd key");
    }
    let lines = section.finish();
    lines.has_valid("address").then_some((config, lines))
}

/// Returns the list of allowed users and groups. If there is none, creates an empty list, which
/// allows nobody.
pub fn allow(access: &mut SocketAccess) -> &mut AllowedPeers {
    access.allow.get_or_insert_default()
}

pub fn tls(value: KeyValue<'_, '_>) -> Option<TlsConfig> {
    let mut section = value.table()?;
    let identity = Identity { certificate: PathBuf::new(), key: PathBuf::new() };
    let files = ServerFiles { identity, client_ca: None };
    let mut tls = TlsConfig { files, required: true };
    section.read(TLS, &mut tls);
    let is_whole = section.lines.has_valid("certificate") && section.lines.has_valid("key");
    if !is_whole {
        section.missing("certificate = \"FILE\" and key = \"FILE\" are both required");
    }
    section.finish();
    is_whole.then_some(tls)
}

fn pem_file(text: &str, base: &Path) -> Result<PathBuf, String> {
    match text {
        "" => Err("write the path of a PEM file".to_owned()),
        path => Ok(base.join(path)),
    }
}

/// Parses a file mode: an octal number such as `0o660`, or a text of octal digits such as `"0660"`.
/// Refuses a decimal number, because a TOML number 660 would be the mode 0o1224.
pub fn mode(digits: &str, base: Option<u32>) -> Result<u32, String> {
    if base.is_some_and(|base| base != 8) {
        return Err("this number is not octal; write the mode as 0o660, or \"0660\"".to_owned());
    }
    let is_octal = digits.len() >= 3 && digits.bytes().all(|digit| matches!(digit, b'0'..=b'7'));
    let mode = u32::from_str_radix(digits, 8).ok().filter(|mode| is_octal && *mode <= 0o777);
    let wrong = "a mode has three octal digits, for the owner, the group and all others; write it as \
                 0o660, or \"0660\"";
    mode.ok_or_else(|| wrong.to_owned())
}

pub fn user(text: &str) -> Result<u32, String> {
    let find = |name: &str| User::from_name(name).map(|user| Some(user?.uid.as_raw()));
    number_of(text, "user", find)
}

pub fn group(text: &str) -> Result<u32, String> {
    let find = |name: &str| Group::from_name(name).map(|group| Some(group?.gid.as_raw()));
    number_of(text, "group", find)
}

fn number_of(
    text: &str,
    kind: &str,
    find: impl Fn(&str) -> nix::Result<Option<u32>>,
) -> Result<u32, String> {
    match text.parse().map_or_else(|_| find(text), |number| Ok(Some(number))) {
        Ok(Some(number)) => Ok(number),
        Ok(None) => Err(format!("there is no {kind} of this name; write another, or a number")),
        Err(error) => Err(format!("the system cannot look up this {kind}: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use millrace::{ListenerTls, VhostSocket};

    use crate::config::{ServePlan, load};

    const START: &str = "[[drive]]\nname = \"d\"\nspec = \"ram:size=1m\"\n[[volume]]\nname = \
                         \"v\"\ndrives = [\"d\"]\n[[export]]\nvolume = \"v\"\nnbd = \
                         [\"unix:/s\", \"tcp:0\"]\n";

    fn plan(text: &str) -> ServePlan {
        load("m.toml", &format!("{START}{text}"), Path::new("/etc")).unwrap()
    }

    fn said(text: &str) -> String {
        load("m.toml", &format!("{START}{text}"), Path::new("/etc")).unwrap_err().to_string()
    }

    #[test]
    fn a_listener_says_who_may_connect_and_tls_is_the_servers() {
        let plan = plan(
            "[[listener]]\naddress = \"unix:/s\"\nmode = \"0660\"\nowner = \"root\"\ngroup = 7\n\
             allow-users = [\"root\", 1000]\ntls = \"off\"\n[server]\ntls = { certificate = \
             \"c.pem\", key = \"/k\", client-ca = \"ca\" }\n",
        );
        let settings = &plan.config.listener_settings[0];
        let access = &settings.access;
        assert_eq!((access.mode, access.owner, access.group), (Some(0o660), Some(0), Some(7)));
        assert_eq!(access.allow.as_ref().unwrap().users, [0, 1000]);
        assert_eq!(settings.tls, ListenerTls::Off);
        assert!(plan.listeners[0].tls.is_none());
        let tls = plan.listeners[1].tls.as_ref().unwrap();
        assert_eq!((plan.listeners[1].tls_line, plan.lines.exports[0].line), (18, 8));
        assert_eq!(tls.files.identity.certificate, Path::new("/etc/c.pem"));
        assert!(tls.required);
    }

    #[test]
    fn an_octal_number_is_that_mode_and_no_other_number_is_one() {
        let at = |key: &str, value: &str| {
            let (export, listener) = ("vhost-user-blk = \"unix:/m\"\n", "address = \"unix:/s\"\n");
            let line = format!("{key} = {value}\n");
            load(
                "m.toml",
                &match key {
                    "mode" => format!("{START}[[listener]]\n{listener}{line}"),
                    "socket-mode" => format!("{START}{export}{line}"),
                    _ => format!("{START}[server]\n{line}"),
                },
                Path::new("/etc"),
            )
        };
        let mode_of = |plan: &ServePlan, key: &str| match key {
            "mode" => plan.config.listener_settings[0].access.mode,
            "socket-mode" => match &plan.config.exports[0].guests.as_ref().unwrap().socket {
                VhostSocket::Listen(_, access) => access.mode,
                VhostSocket::Connect(_) => None,
            },
            _ => plan.daemon.control_access.mode,
        };
        for key in ["mode", "socket-mode", "control-mode"] {
            for (value, mode) in [
                ("0o660", 0o660),
                ("0o6_40", 0o640),
                ("0o0600", 0o600),
                ("0o007", 0o007),
                ("\"0660\"", 0o660),
                ("\"606\"", 0o606),
            ] {
                let plan = at(key, value).unwrap_or_else(|why| panic!("{key} = {value}: {why}"));
                assert_eq!(mode_of(&plan, key), Some(mode), "{key} = {value}");
            }
            for value in ["660", "432", "0x1b0", "0b110110000", "+660", "-660"] {
                let said = at(key, value).unwrap_err().to_string();
                assert!(said.contains(&format!("{key} = ")), "{value}: {said}");
                assert!(said.contains("is not octal; write the mode as 0o660"), "{value}: {said}");
            }
            for value in
                ["0o60", "0o1777", "\"0o660\"", "\"+660\"", "\"680\"", "\"\"", "true", "[\"0660\"]"]
            {
                let said = at(key, value).unwrap_err().to_string();
                assert!(said.contains("a mode has three octal digits"), "{value}: {said}");
            }
        }
    }

    #[test]
    fn mistakes_are_named_with_their_lines() {
        let listener = "[[listener]]\naddress = \"unix:/s\"\n";
        for (text, words) in [
            ("[[listener]]\naddress = \"unix:/t\"\n", "m.toml:11: address: no export has nbd"),
            ("[[listener]]\nmode = \"0660\"\n", "this listener has no address"),
            (&format!("{listener}{listener}"), "m.toml:13: address: unix:/s has a [[listener]]"),
            (
                &format!("{listener}mode = \"rw\"\n"),
                "m.toml:12: mode = \"rw\": a mode has three octal",
            ),
            (&format!("{listener}owner = \"nobody-there\"\n"), "there is no user of this name"),
            (&format!("{listener}allow-groups = [\"no-such\"]\n"), "there is no group of this"),
            (&format!("{listener}tls = \"on\"\n"), "tls = \"on\": write \"off\""),
            (&format!("{listener}tls = {{ key = \"k\" }}\n"), "key = \"FILE\" are both required"),
            (&format!("{listener}modes = 1\n"), "unknown key \"modes\" in [[listener]]; did you"),
            ("[server]\ntls = { certificate = \"c\", key = \"k\", ca = \"x\" }\n", "client-ca"),
        ] {
            let said = said(text);
            assert!(said.contains(words), "{text}: {said}");
        }
    }
}
