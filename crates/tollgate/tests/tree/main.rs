//! The tree of classes: simulations on virtual time, laws on random trees, and threads.

mod laws;
mod live;
mod shares;
mod sim;
mod threads;
mod verbs;
