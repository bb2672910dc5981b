//! `PeerNames`: the names in a certificate, for lists of those who may do something.
//!
//! Made by `certificate.rs`; compared by the server, shown in logs.

/// Names in a certificate: of a peer that has shown it, for lists of those who may do something, or
/// of this side's own.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PeerNames {
    /// The common name of the subject.
    pub common_name: Option<String>,
    /// Alternative names: of hosts, addresses of mail, URIs and IP addresses.
    pub alternatives: Vec<String>,
}

impl PeerNames {
    /// Whether `name` is one of its names, exactly.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.all().any(|own| own == name)
    }

    /// All of its names, the common name first.
    pub fn all(&self) -> impl Iterator<Item = &str> {
        self.common_name.iter().chain(&self.alternatives).map(String::as_str)
    }
}

impl std::fmt::Display for PeerNames {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut names = self.all().collect::<Vec<_>>();
        names.dedup();
        if names.is_empty() {
            return f.write_str("a peer without a name");
        }
        // Names come from the peer: nothing in them may write lines of a log of its own.
        write!(f, "{}", names.join(", ").escape_debug())
    }
}
