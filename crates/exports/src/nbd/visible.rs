//! The exports of a listener that one client may see: listed exports that the client's certificate
//! allows, and exports opened on the client's request.
//!
//! receive.rs makes a `VisibleExports` for each step of a negotiation, and passes it to the
//! protocol code as its catalog.

use std::cell::RefCell;
use std::sync::Arc;

use millrace_nbd::{ExportCatalog, ExportInfo, WantedExport};
use millrace_tls::PeerNames;

use super::exports::{Export, ExportTable, ListenerCatalog};
use super::on_demand::OnDemandState;

pub(crate) struct VisibleExports<'a> {
    catalog: &'a ListenerCatalog,
    peer: Option<&'a PeerNames>,
    refused: RefCell<Option<String>>,
    demand: &'a OnDemandState,
}

impl<'a> VisibleExports<'a> {
    /// Creates a client's view of the listener's exports from the names in the client's certificate
    /// and its request for an on-demand export. Returns `None` if the listener was removed.
    pub(crate) fn of(
        exports: &'a ExportTable,
        listener: usize,
        (peer, demand): (Option<&'a PeerNames>, &'a OnDemandState),
    ) -> Option<VisibleExports<'a>> {
        let refused = RefCell::default();
        exports.catalog(listener).map(|catalog| VisibleExports { catalog, peer, refused, demand })
    }

    pub(crate) fn export(&self, index: usize) -> Option<&Arc<Export>> {
        match self.demand {
            OnDemandState::ExportSession(_, granted) if granted.index() == index => {
                Some(&granted.0)
            }
            _ => self.catalog.exports.get(index),
        }
    }

    pub(crate) fn take_refused(self) -> Option<String> {
        self.refused.into_inner()
    }

    fn may_use(&self, index: usize) -> bool {
        match self.catalog.exports.get(index).and_then(|export| export.tls_allow.as_ref()) {
            None => true,
            Some(names) => self.peer.is_some_and(|peer| names.iter().any(|name| peer.has(name))),
        }
    }
}

impl ExportCatalog for VisibleExports<'_> {
    fn len(&self) -> usize {
        self.catalog.len()
    }

    fn get(&self, index: usize) -> Option<&ExportInfo> {
        self.export(index).filter(|_| self.may_use(index)).map(|export| &export.info)
    }

    fn size_bytes(&self, index: usize) -> u64 {
        self.export(index).map_or(0, |export| export.size_bytes())
    }

    /// Finds an export by name. The empty name means the first export that the client may use.
    fn find(&self, name: &str) -> Option<usize> {
        let is_it = |info: &ExportInfo| name.is_empty() || info.name == name;
        let found = (0..self.len()).find(|index| self.get(*index).is_some_and(is_it));
        if found.is_none() && self.catalog.find(name).is_some() {
            let who = self.peer.map_or_else(
                || "a client without a certificate".to_owned(),
                |peer| peer.to_string(),
            );
            let why = format!(
                "{who} may not use export {name:?}: its tls-allow does not list this client"
            );
            *self.refused.borrow_mut() = Some(why);
            return None;
        }
        match self.demand {
            OnDemandState::ExportSession(known, granted) if found.is_none() && known == name => {
                Some(granted.index())
            }
            _ => found,
        }
    }

    fn is_pending(&self, wanted: WantedExport<'_>) -> bool {
        let is_known = |name: &str| match self.demand {
            OnDemandState::ExportSession(known, _) | OnDemandState::Refused(known, _) => {
                known == name
            }
            _ => false,
        };
        self.catalog.on_demand
            && match wanted {
                WantedExport::List => !matches!(self.demand, OnDemandState::Listed(_)),
                // A listed export takes precedence over an on-demand export with the same name,
                // even for a client that may not use the listed export.
                WantedExport::Export(name) => {
                    !name.is_empty() && !is_known(name) && self.catalog.find(name).is_none()
                }
            }
    }

    fn why_refused(&self, name: &str) -> Option<String> {
        match self.demand {
            OnDemandState::Refused(refused, why) if refused == name => why.clone(),
            _ => None,
        }
    }

    fn listed(&self) -> usize {
        let on_demand =
            if let OnDemandState::Listed(names) = self.demand { names.len() } else { 0 };
        self.len() + on_demand
    }

    fn listing(&self, index: usize) -> Option<(&str, &str)> {
        match (index.checked_sub(self.len()), self.demand) {
            (Some(at), OnDemandState::Listed(names)) => {
                names.get(at).map(|name| (name.as_str(), ""))
            }
            _ => self.get(index).map(|info| (info.name.as_str(), info.description.as_str())),
        }
    }
}
