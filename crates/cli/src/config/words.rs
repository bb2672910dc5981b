//! Grammar of values in a configuration and on the command line: sizes, times, addresses and fixed
//! sets of words.
//!
//! Pure functions that parse a text into a value, or into an error that states the rule and a valid
//! text. Grammar shared with the laboratory's command line is in millrace-console.

use std::ffi::OsStr;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::builder::{PossibleValue, TypedValueParser};
use clap::{Arg, Command};
use millrace::{CHUNK_SECTORS_MAX, Listen, Words as _, unknown_word};
use millrace_block::Serving;
pub use millrace_console::words::{
    bytes_for_people, count, count_text, design, duration_text, number, ranges, rate_bytes_per_s,
    size, size_text, time, whole, word as setting,
};
use millrace_machine::{CpuId, Machine, Native};

pub const DAY: Duration = Duration::from_secs(24 * 3600);
const NBD_PORT: u16 = 10809;
/// Default port of the metrics page: the first of the range that Prometheus exporters use.
const METRICS_PORT: u16 = 9100;
const MEMORY_BYTES_MIN: u64 = 64 << 20;
/// Longest path of a Unix socket: `sun_path` holds 108 bytes with the NUL at its end.
const SOCKET_PATH_BYTES_MAX: usize = 107;

const CHUNK_BYTES_MAX: u64 = (CHUNK_SECTORS_MAX as u64) << 9;

pub fn chunk_sectors(text: &str) -> Result<u32, String> {
    let bytes = size(text)?;
    if !bytes.is_power_of_two() || !(4096..=CHUNK_BYTES_MAX).contains(&bytes) {
        let better = bytes.clamp(4096, CHUNK_BYTES_MAX).next_power_of_two() >> 10;
        let most = size_text(CHUNK_BYTES_MAX);
        return Err(format!("a chunk is a power of two from 4k to {most}, such as {better}k"));
    }
    Ok((bytes >> 9) as u32)
}

pub fn duration(text: &str, range: &RangeInclusive<Duration>) -> Result<Duration, String> {
    let (least, most) = (duration_text(*range.start()), duration_text(*range.end()));
    match time(text) {
        Ok(time) if range.contains(&time) => Ok(time),
        Ok(_) => Err(format!("write a time from {least} to {most}")),
        Err(wrong) => Err(format!("{wrong}; the range is {least} to {most}")),
    }
}

pub fn up_to_a_second(text: &str) -> Result<Duration, String> {
    duration(text, &(Duration::ZERO..=Duration::from_secs(1)))
}

/// Parses the maximum time for which a thread polls before it sleeps. Returns `None` for `auto`.
pub fn spin(text: &str) -> Result<Option<Duration>, String> {
    if text == "auto" {
        return Ok(None);
    }
    let time = up_to_a_second(text);
    time.map(Some).map_err(|why| format!("{why}, or auto"))
}

pub fn memory_max(text: &str) -> Result<u64, String> {
    let bytes = size(text)?;
    match bytes {
        MEMORY_BYTES_MIN.. => Ok(bytes),
        _ => {
            let why = "a single NBD request may need 32m, and other clients need memory, too";
            Err(format!("write a size of 64m or more, because {why}"))
        }
    }
}

pub fn cpu(text: &str) -> Result<CpuId, String> {
    let cpus: Vec<u32> = Native::topology().cpus().iter().map(|cpu| cpu.id.0).collect();
    let number = text.trim().parse().ok().filter(|number| cpus.contains(number));
    number.map(CpuId).ok_or_else(|| {
        format!(
            "this process is not allowed to run on this CPU; it is allowed to use {}",
            ranges(&cpus)
        )
    })
}

pub(super) fn choice<T: Copy>(noun: &str, text: &str, words: &[(&str, T)]) -> Result<T, String> {
    if let Some((_, value)) = words.iter().find(|(word, _)| *word == text) {
        return Ok(*value);
    }
    let names: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
    Err(unknown_word(noun, text, &names))
}

/// Puts a setting, such as `mode = "x"`, in front of an error text. An error text that begins with
/// "unknown" already names the value, and is returned unchanged.
pub fn refusal(setting: &str, error: &str) -> String {
    match error.starts_with("unknown ") {
        true => error.to_owned(),
        false => format!("{setting}: {error}"),
    }
}

pub fn yes_or_no(text: &str) -> Result<bool, String> {
    // The configuration reader passes TOML booleans as `on` and `off`.
    let said = match text {
        "on" => "true",
        "off" => "false",
        other => other,
    };
    choice("switch", said, &[("true", true), ("false", false)])
}

/// Parses a serving mode. Refuses `Serving::PerVolume`, which only `millrace-lab` offers.
pub fn serving(text: &str) -> Result<Serving, String> {
    let served = |(mode, _): &(Serving, &str)| *mode != Serving::PerVolume;
    let modes: Vec<_> = Serving::WORDS.iter().copied().filter(served).collect();
    let words: Vec<_> = modes.iter().map(|(mode, word)| (*word, *mode)).collect();
    match setting(text) {
        Ok(Serving::PerVolume) => {
            Err("a setting of `millrace-lab bench --serving`; write inline, \
                                       per-drive or auto"
                .to_owned())
        }
        _ => choice(Serving::NOUN, text, &words),
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LayoutWord {
    Stripe,
    Linear,
}

/// Parser of the layout flag. Lists the possible words, so that shell completion can offer them.
#[derive(Debug, Clone)]
pub struct LayoutParser;

impl TypedValueParser for LayoutParser {
    type Value = LayoutWord;

    fn parse_ref(
        &self,
        command: &Command,
        arg: Option<&Arg>,
        text: &OsStr,
    ) -> Result<LayoutWord, clap::Error> {
        layout.parse_ref(command, arg, text)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(["linear", "stripe"].iter().map(PossibleValue::new)))
    }
}

pub fn layout(text: &str) -> Result<LayoutWord, String> {
    if text == "mirror" {
        return Err("mirrored volumes are not supported: choose linear or stripe".to_owned());
    }
    choice("layout", text, &[("stripe", LayoutWord::Stripe), ("linear", LayoutWord::Linear)])
}

/// Parses `unix:PATH`, `tcp:ADDRESS:PORT`, `tcp:PORT` for loopback, or `systemd:NAME`. Relative
/// paths start from `base`.
pub fn address(text: &str, base: &Path) -> Result<Listen, String> {
    match text.split_once(':') {
        Some(("unix", "")) => Err("the path of the socket is missing; write unix:PATH".to_owned()),
        Some(("unix", "@")) => Err("the name of the abstract socket is missing".to_owned()),
        Some(("unix", name)) if name.starts_with('@') => abstract_name(&name[1..]),
        Some(("unix", path)) => socket_path(base.join(path)),
        Some(("tcp", place)) => tcp(place, NBD_PORT).map(Listen::Tcp),
        Some(("systemd", "")) => {
            Err("the name of the socket is missing; write systemd:NAME".to_owned())
        }
        Some(("systemd", name)) => Ok(Listen::Inherited(name.to_owned())),
        _ => Err("write \"unix:PATH\" or \"tcp:ADDRESS:PORT\"".to_owned()),
    }
}

fn abstract_name(name: &str) -> Result<Listen, String> {
    match name.len() > SOCKET_PATH_BYTES_MAX - 1 || name.contains(char::is_control) {
        true => Err(format!(
            "the name of an abstract socket is at most {} bytes long, none of them a control \
             character",
            SOCKET_PATH_BYTES_MAX - 1
        )),
        false => Ok(Listen::Abstract(name.to_owned())),
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ControlWord {
    At(PathBuf),
    Off,
}

pub fn control(text: &str, base: &Path) -> Result<ControlWord, String> {
    match (text, text.strip_prefix("unix:")) {
        ("off", _) => Ok(ControlWord::Off),
        (_, Some(_)) => match address(text, base)? {
            Listen::Unix(path) => Ok(ControlWord::At(path)),
            _ => Err("a control socket is a file; write unix:PATH".to_owned()),
        },
        _ => Err("a control socket is \"unix:PATH\", or \"off\"".to_owned()),
    }
}

pub fn folder(text: &str, base: &Path) -> Result<PathBuf, String> {
    match text.is_empty() || text.contains(char::is_control) {
        true => Err("write the path of a directory, as in \"/var/lib/millrace\"".to_owned()),
        false => Ok(base.join(text)),
    }
}

pub fn metrics(text: &str) -> Result<SocketAddr, String> {
    tcp(text, METRICS_PORT).map_err(|error| error.replace("tcp:", ""))
}

/// Returns the default path of the control socket: the path of a client socket with `.control`
/// appended. So each daemon has its own control socket. Returns `None` if the path is too long for
/// a socket.
pub fn control_beside(socket: &Path) -> Option<PathBuf> {
    let mut beside = socket.as_os_str().to_owned();
    beside.push(".control");
    (beside.len() <= SOCKET_PATH_BYTES_MAX).then(|| beside.into())
}

fn socket_path(path: PathBuf) -> Result<Listen, String> {
    let length = path.as_os_str().len();
    if length > SOCKET_PATH_BYTES_MAX {
        return Err(format!(
            "the path of a socket is at most {SOCKET_PATH_BYTES_MAX} bytes long, but {} has \
             {length}; put it into a directory with a shorter path",
            path.display()
        ));
    }
    Ok(Listen::Unix(path))
}

fn tcp(place: &str, port_default: u16) -> Result<SocketAddr, String> {
    if let Ok(address) = place.parse::<SocketAddr>() {
        return Ok(address);
    }
    let (host, port) = match place.parse::<IpAddr>() {
        Ok(ip) => return Ok(SocketAddr::new(ip, port_default)),
        Err(_) => place.rsplit_once(':').unwrap_or(("", place)),
    };
    if place.starts_with('[') || place.matches(':').count() > 1 {
        return Err(format!(
            "\"{place}\" is no address and port; an IPv6 address goes into [ ], and its port behind \
             that: tcp:[::1]:{port_default}"
        ));
    }
    // An IP address came with a port that is none; the last error says so.
    if !matches!(host, "" | "localhost") && host.parse::<IpAddr>().is_err() {
        return Err(format!(
            "\"{host}\" is no IP address; write tcp:127.0.0.1:{port_default}, or \
                            tcp:0.0.0.0:{port_default} for all interfaces"
        ));
    }
    let port: u16 = port
        .parse()
        .map_err(|_| format!("\"{port}\" is not a port; write a number from 0 to 65535"))?;
    Ok(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_port_behind_a_good_address_is_named() {
        for place in ["0.0.0.0:99999", "127.0.0.1:x", "localhost:70000", "99999"] {
            let error = tcp(place, 10_809).unwrap_err();
            assert!(error.ends_with("is not a port; write a number from 0 to 65535"), "{error}");
        }
    }

    #[test]
    fn sizes_and_times_have_a_range() {
        let hour = Duration::ZERO..=Duration::from_secs(3600);
        assert_eq!(duration("1m", &hour), Ok(Duration::from_secs(60)));
        let error = Err("write a time from 0 to 1h".to_owned());
        assert_eq!(duration("18446744073s", &hour), error);
        assert_eq!(duration("3601s", &hour), error);
        assert_eq!((memory_max("64m"), memory_max("63m").is_err()), (Ok(64 << 20), true));
    }

    #[test]
    fn a_cpu_is_one_that_this_process_may_use() {
        let cpus: Vec<u32> = Native::topology().cpus().iter().map(|cpu| cpu.id.0).collect();
        assert_eq!(cpu(&cpus[0].to_string()), Ok(CpuId(cpus[0])));
        let error = cpu("65535").unwrap_err();
        assert!(
            error.contains("not allowed to run on this CPU") && error.ends_with(&ranges(&cpus)),
            "{error}"
        );
    }

    #[test]
    fn an_abstract_socket_and_a_handed_over_one_have_a_name() {
        let at = |text: &str| address(text, Path::new("/base"));
        assert_eq!(at("unix:@abc"), Ok(Listen::Abstract("abc".to_owned())));
        assert_eq!(at("systemd:nbd"), Ok(Listen::Inherited("nbd".to_owned())));
        assert!(at("unix:@").unwrap_err().contains("name") && at("systemd:").is_err());
        assert!(at(&format!("unix:@{}", "a".repeat(107))).unwrap_err().contains("106 bytes"));
        let file = Ok(Listen::Unix("./@abc".into()));
        assert_eq!(address("unix:./@abc", Path::new("")), file);
    }

    #[test]
    fn a_chunk_that_is_no_power_of_two_names_one() {
        assert_eq!(chunk_sectors("64k"), Ok(128));
        assert_eq!(chunk_sectors("2g"), Ok(CHUNK_SECTORS_MAX));
        let error = chunk_sectors("60k").unwrap_err();
        assert_eq!(error, "a chunk is a power of two from 4k to 2g, such as 64k");
    }

    #[test]
    fn tcp_is_loopback_unless_an_address_is_written() {
        let tcp = |text: &str| {
            address(text, Path::new("")).map(|address| match address {
                Listen::Tcp(tcp) => tcp.to_string(),
                other => panic!("{other}"),
            })
        };
        assert_eq!(tcp("tcp:10809").unwrap(), "127.0.0.1:10809");
        assert_eq!(tcp("tcp::7").unwrap(), "127.0.0.1:7");
        assert_eq!(tcp("tcp:localhost:7").unwrap(), "127.0.0.1:7");
        assert_eq!(tcp("tcp:0.0.0.0:7").unwrap(), "0.0.0.0:7");
        assert_eq!(tcp("tcp:[::1]:7").unwrap(), "[::1]:7");
        for text in ["tcp:::1:20820", "tcp:[::1]", "tcp:[::1]:"] {
            assert!(
                tcp(text).unwrap_err().contains("goes into [ ], and its port behind"),
                "{text}"
            );
        }
        assert!(tcp("tcp:example.org:7").is_err() && tcp("tcp:x").is_err() && tcp("a").is_err());
    }

    #[test]
    fn metrics_are_on_loopback_unless_an_address_is_written() {
        let at = |text: &str| metrics(text).map(|address| address.to_string());
        assert_eq!(at("127.0.0.1:9100").unwrap(), "127.0.0.1:9100");
        assert_eq!(at("9200").unwrap(), "127.0.0.1:9200");
        assert_eq!(at("0.0.0.0").unwrap(), "0.0.0.0:9100");
        let error = "\"a\" is no IP address; write 127.0.0.1:9100, or 0.0.0.0:9100 for all \
                     interfaces";
        assert_eq!(at("a:1").unwrap_err(), error);
    }

    #[test]
    fn a_control_socket_is_a_path_or_off() {
        let base = Path::new("/x");
        assert_eq!(control("off", base), Ok(ControlWord::Off));
        assert_eq!(control("unix:c", base), Ok(ControlWord::At("/x/c".into())));
        assert!(control("tcp:7", base).is_err() && control("unix:", base).is_err());
        assert_eq!(control_beside(Path::new("a/s")), Some("a/s.control".into()));
        assert_eq!(control_beside(Path::new(&"x".repeat(100))), None);
    }

    #[test]
    fn a_socket_path_that_is_too_long_is_refused_with_its_length() {
        let text = format!("unix:{}", "x".repeat(104));
        assert!(address(&text, Path::new("")).is_ok());
        let error = address(&text, Path::new("/tmp")).unwrap_err();
        assert!(error.contains("at most 107") && error.contains("109"), "{error}");
    }

    #[test]
    fn a_wrong_word_lists_the_words_there_are() {
        let error = setting::<millrace::SchedulerKind>("fare").unwrap_err();
        let said =
            "unknown scheduler \"fare\"; choose none, deadline, fair or latency; did you mean";
        assert!(error.starts_with(said), "{error}");
    }
}
