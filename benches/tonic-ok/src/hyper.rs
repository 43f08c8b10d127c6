//! A plain HTTP/1 server by hyper that reads the body of each request and answers it as the service does, without looking at it: what
//! HTTP/1 costs by itself. It prints its address, and serves until it is ended.

use std::convert::Infallible;
use std::error::Error;
use std::io::Write;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;

/// As long as what the service answers to `POST /v1/check`.
const PASSED: Bytes = Bytes::from_static(
    br#"{"allowed":true,"rule":"per-user","limit":1000000,"remaining":999999,"reset_after":0.000001}"#,
);

async fn answer(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, hyper::Error> {
    request.into_body().collect().await?;
    let mut response = Response::new(Full::new(PASSED));
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(CONTENT_TYPE, json);
    Ok(response)
}

#[tokio::main]
async fn main() -> Result<Infallible, Box<dyn Error>> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("{}", listener.local_addr()?);
    std::io::stdout().flush()?;
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service_fn(answer));
        // A client that goes away is no matter of the server's.
        tokio::spawn(async move { drop(connection.await) });
    }
}
