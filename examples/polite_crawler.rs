//! A polite crawler: five pages a second, however many links it finds, with at most ten in the queue. On tokio's
//! paused time.

use std::time::Duration;

use tollgate::clock::{Clock, Tokio};
use tollgate::{Rate, Timestamp};
use tollgate_shape::{PaceDenied, WorkPacer};

#[tokio::main(flavor = "current_thread", start_paused = true)]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let clock = Tokio::new();
    let began = clock.now();
    let pacer = WorkPacer::builder(Rate::per_second(5), 10)
        .clock(clock)
        .build()?;
    println!("a page waits {:?} at most", pacer.longest_wait());

    // A page has 14 links: ten fit into the queue, and the crawler comes back for the others.
    let mut fetches = Vec::new();
    let mut later = Vec::new();
    for link in 0..14u32 {
        let fetch = pacer.submit_async(move || async move {
            tokio::time::sleep(Duration::from_millis(70)).await; // what the server takes
            (link, clock.now())
        });
        match fetch {
            Ok(fetch) => fetches.push(fetch),
            Err(PaceDenied::QueueFull {
                waiting, turn_in, ..
            }) => {
                println!("link {link}: {waiting} wait already, come back in {turn_in:?}");
                later.push(link);
            }
            Err(other) => return Err(other.into()),
        }
    }
    let mut last = Timestamp::ZERO;
    for fetch in fetches {
        let (link, at) = fetch.await?;
        println!("link {link} fetched after {:?}", at - began);
        last = at;
    }
    assert_eq!(last - began, Duration::from_millis(1_870));
    // Submitted one by one, work can't overflow the queue.
    for link in later {
        let waited = pacer.pace().await?;
        println!("link {link} fetched, {waited:?} waited");
    }
    assert_eq!(clock.now() - began, Duration::from_millis(2_600));
    Ok(())
}
