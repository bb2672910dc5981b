//! `CpuFile`: reads and checks the records of one `NAME.blktrace.N` file, or of a pipe that carries
//! the records of all CPUs.
//!
//! `CpuFile` keeps at most `PDU_KEPT_MAX` bytes of each record's data. No tool shows more than
//! that, and a record with a hostile length then costs time but no memory.

use std::io::{self, Read};
use std::path::{Path, PathBuf};

use millrace_block::blktrace::{CGROUP, CGROUP_BYTES, RECORD_BYTES, Record, RecordError};

use super::TraceError;

/// Maximum bytes of data kept for one record; the reader skips the rest.
pub const PDU_KEPT_MAX: usize = 1024;

const CONVERT: &str =
    "; if the trace has another format, convert it with `millrace-lab trace convert`";

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct TraceRecord {
    pub(super) record: Record,
    /// Data of the record without a leading cgroup number: at most `PDU_KEPT_MAX` bytes.
    pub(super) data: Vec<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CpuScope {
    /// CPU number in the file's name, used until the first record is read.
    Named(u32),
    /// CPU number in the first record, which all other records must have, too.
    One(u32),
    Any,
}

pub(super) struct CpuFile<R> {
    path: PathBuf,
    whose: CpuScope,
    input: R,
    offset: u64,
}

impl<R: Read> CpuFile<R> {
    pub(super) fn new(path: PathBuf, cpu: u32, input: R) -> Self {
        CpuFile { path, whose: CpuScope::Named(cpu), input, offset: 0 }
    }

    /// Reads the output of `blktrace -o -`, in which the records of all CPUs are interleaved.
    pub(super) fn pipe(path: PathBuf, input: R) -> Self {
        CpuFile { path, whose: CpuScope::Any, input, offset: 0 }
    }

    /// Returns the CPU of the file's records, or 0 if the input holds the records of all CPUs.
    pub(super) fn cpu(&self) -> u32 {
        match self.whose {
            CpuScope::Named(cpu) | CpuScope::One(cpu) => cpu,
            CpuScope::Any => 0,
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    pub(super) fn read(&mut self) -> Result<Option<TraceRecord>, TraceError> {
        let mut bytes = [0; RECORD_BYTES];
        let have = self.fill(&mut bytes)?;
        if have == 0 {
            return Ok(None);
        }
        if have < RECORD_BYTES {
            return Err(self.truncated(have, RECORD_BYTES));
        }
        let record = Record::decode(&bytes).map_err(|error| {
            let is_other = matches!(error, RecordError::Magic(_));
            self.broken(format!("{error}{}", if is_other { CONVERT } else { "" }))
        })?;
        match self.whose {
            CpuScope::Named(_) => self.whose = CpuScope::One(record.cpu),
            CpuScope::One(cpu) if cpu != record.cpu => {
                return Err(self.broken(format!(
                    "a record of CPU {} in the file of CPU {cpu}: were files of several traces \
                     mixed?",
                    record.cpu
                )));
            }
            CpuScope::One(_) | CpuScope::Any => {}
        }
        let data = self.data(&record)?;
        self.offset += (RECORD_BYTES + usize::from(record.pdu_len)) as u64;
        Ok(Some(TraceRecord { record, data }))
    }

    fn data(&mut self, record: &Record) -> Result<Vec<u8>, TraceError> {
        let len = usize::from(record.pdu_len);
        let mut data = vec![0; len.min(PDU_KEPT_MAX)];
        let mut have = self.fill(&mut data)?;
        if have == data.len() && have < len {
            let mut rest = self.input.by_ref().take((len - have) as u64);
            let passed = io::copy(&mut rest, &mut io::sink());
            have += passed.map_err(|source| self.failed(source))? as usize;
        }
        if have < len {
            return Err(self.truncated(RECORD_BYTES + have, RECORD_BYTES + len));
        }
        if record.action & CGROUP != 0 && data.len() >= CGROUP_BYTES {
            data.drain(..CGROUP_BYTES);
        }
        let want = record.act().map_or(0, |act| act.pdu_bytes_min());
        if let (Some(act), true) = (record.act(), data.len() < want) {
            let (letters, have) = (act.letters(), data.len());
            let text =
                format!("a record of event {letters} has {have} bytes of data, but needs {want}");
            return Err(self.broken(text));
        }
        Ok(data)
    }

    fn fill(&mut self, buffer: &mut [u8]) -> Result<usize, TraceError> {
        let mut have = 0;
        while have < buffer.len() {
            match self.input.read(&mut buffer[have..]) {
                Ok(0) => break,
                Ok(bytes) => have += bytes,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.failed(error)),
            }
        }
        Ok(have)
    }

    fn failed(&self, source: io::Error) -> TraceError {
        TraceError::Io { file: self.path.clone(), offset: self.offset, source }
    }

    fn truncated(&self, have: usize, want: usize) -> TraceError {
        let problem = format!("the file ends inside a record ({have} of {want} bytes)");
        let (file, offset, seen_bytes) = (self.path.clone(), self.offset, have as u64);
        TraceError::Broken { file, offset, problem, seen_bytes }
    }

    fn broken(&self, problem: String) -> TraceError {
        let (file, offset) = (self.path.clone(), self.offset);
        TraceError::Broken { file, offset, problem, seen_bytes: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millrace_block::blktrace::{EventCode, NotifyKind};

    fn problem(bytes: &[u8]) -> (u64, String) {
        let mut file = CpuFile::new("t.blktrace.3".into(), 3, bytes);
        loop {
            match file.read() {
                Ok(item) => assert!(item.is_some(), "the file has no problem"),
                Err(TraceError::Broken { offset, problem, .. }) => return (offset, problem),
                Err(error) => panic!("{error}"),
            }
        }
    }

    fn record(action: u32, pdu_len: u16) -> Vec<u8> {
        Record { action, pdu_len, cpu: 3, ..Record::default() }.encode().into()
    }

    #[test]
    fn a_file_that_ends_inside_a_record_says_where_that_begins() {
        let truncated = |bytes| format!("the file ends inside a record ({bytes} bytes)");
        let whole = record(EventCode::Queue.with(0), 0);
        let bytes = [whole.clone(), whole.clone(), whole[..47].to_vec()].concat();
        assert_eq!(problem(&bytes), (96, truncated("47 of 48")));
        let bytes =
            [whole, record(NotifyKind::Message.action(), 2_000), vec![b'x'; 1_999]].concat();
        assert_eq!(problem(&bytes), (48, truncated("2047 of 2048")));
    }

    #[test]
    fn records_of_another_cpu_and_data_that_lack_are_refused() {
        let other = Record { cpu: 4, ..Record::default() }.encode();
        let bytes = [record(EventCode::Plug.with(0), 0), other.into()].concat();
        let text = "a record of CPU 4 in the file of CPU 3: were files of several traces mixed?";
        assert_eq!(problem(&bytes), (48, text.to_owned()));
        let text = "a record of event A has 8 bytes of data, but needs 16";
        let bytes = [record(EventCode::Remap.with(0), 8), vec![0; 8]].concat();
        assert_eq!(problem(&bytes), (0, text.to_owned()));
        let cgroup = record(EventCode::Remap.with(0) | CGROUP, 16);
        let bytes = [cgroup, vec![0; 16]].concat();
        assert_eq!(problem(&bytes), (0, text.to_owned()));
    }

    #[test]
    fn first_record_of_a_file_names_its_owner_and_a_pipe_has_all() {
        let of =
            |cpu| Record { cpu, action: EventCode::Plug.with(0), ..Record::default() }.encode();
        let bytes = [of(7), of(7)].concat();
        let mut file = CpuFile::new("t.blktrace.0".into(), 0, &bytes[..]);
        assert!(file.read().unwrap().is_some() && file.read().unwrap().is_some());
        assert_eq!(file.cpu(), 7);
        let bytes = [of(7), of(2)].concat();
        let mut pipe = CpuFile::pipe("-".into(), &bytes[..]);
        let cpus = std::iter::from_fn(|| pipe.read().unwrap()).map(|item| item.record.cpu);
        assert_eq!(cpus.collect::<Vec<_>>(), [7, 2]);
    }

    #[test]
    fn long_data_are_passed_over_and_the_next_record_is_found() {
        let long = [record(NotifyKind::Message.action(), u16::MAX), vec![b'x'; 65_535]].concat();
        let bytes = [long, record(EventCode::Plug.with(0), 0)].concat();
        let mut file = CpuFile::new("t".into(), 3, &bytes[..]);
        assert_eq!(file.read().unwrap().unwrap().data.len(), PDU_KEPT_MAX);
        assert_eq!(file.read().unwrap().unwrap().record.act(), Some(EventCode::Plug));
        assert_eq!((file.read().unwrap(), file.offset()), (None, bytes.len() as u64));
    }
}
