mod request;
mod wire;
