mod frame;
mod reply;
