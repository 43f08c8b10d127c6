//! Clients that are paced, on tokio's paused time, by servers that are friendly, slow or hostile.

mod cancel;
mod hostile;
mod kit;
mod obey;
