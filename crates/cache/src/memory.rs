//! Memory of a cache: pages in extents, extents in shards, and copies to and from requests.

pub(crate) mod cursor;
pub(crate) mod extent;
pub(crate) mod frames;
pub(crate) mod page;
pub(crate) mod request_pointer;
pub(crate) mod shard;
