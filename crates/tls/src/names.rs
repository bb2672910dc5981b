//! `PeerNames`: the names in a certificate.
//!
//! `certificate.rs` reads the names; the server compares them with access lists, and logs show
//! them.

/// Names in the certificate of a peer or of this side.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PeerNames {
    /// Common name of the subject.
    pub common_name: Option<String>,
    /// Subject alternative names: host names, mail addresses, URIs and IP addresses.
    pub alternatives: Vec<String>,
}

impl PeerNames {
    /// Returns true if the certificate has exactly this name.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.all().any(|own| own == name)
    }

    /// Returns all names, the common name first.
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
        // The names are escaped, because they come from the peer and must not look like lines of
        // the log.
        write!(f, "{}", names.join(", ").escape_debug())
    }
}
