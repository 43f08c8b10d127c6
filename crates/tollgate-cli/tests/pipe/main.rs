//! `tollgate pipe`: which lines pass, and that no byte is changed or lost; on virtual time, and as a process.

mod lines;
mod process;
