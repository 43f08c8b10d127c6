//! E-mail pacing: a relay takes one mail a second and dislikes bursts. A campaign of 60 mails is a paced stream. A
//! password reset in between waits in the same queue, with a deadline.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_core::Stream;
use tollgate::Rate;
use tollgate::clock::{Clock, Tokio};
use tollgate_shape::WorkPacer;

/// The addresses of a campaign.
struct Campaign(u32);

impl Stream for Campaign {
    type Item = u32;

    fn poll_next(mut self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<Option<u32>> {
        self.0 += 1;
        Poll::Ready(Some(self.0).filter(|mail| *mail <= 60))
    }
}

#[tokio::main(flavor = "current_thread", start_paused = true)]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let clock = Tokio::new();
    let began = clock.now();
    let relay = WorkPacer::builder(Rate::per_second(1), 30)
        .clock(clock)
        .build()?;

    let campaign = tokio::spawn({
        let mut mails = Box::pin(relay.stream(Campaign(0)));
        async move {
            let mut sent = 0;
            while let Some(_mail) =
                std::future::poll_fn(|context| mails.as_mut().poll_next(context)).await
            {
                sent += 1;
            }
            (sent, clock.now() - began)
        }
    });
    tokio::time::sleep(Duration::from_millis(10_500)).await;
    let waited = relay.pace().timeout(Duration::from_secs(5)).await?;
    println!("the password reset waited {waited:?} among the campaign");
    assert!(waited <= Duration::from_secs(2));

    let (sent, took) = campaign.await?;
    println!("{sent} mails of the campaign in {took:?}");
    assert_eq!((sent, took), (60, Duration::from_secs(60)));
    Ok(())
}
