//! One connection, whatever is spoken on it: bytes in, answers out, neither too slow nor for ever.
//!
//! All that is whole in what was read is answered before anything is written, so the answers to a pipeline leave in one
//! write. A connection on which nothing happens keeps next to no memory: bytes are read into the stack, and copied from
//! there.

use std::future::{Future, poll_fn};
use std::io;
use std::mem::MaybeUninit;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::time::{Instant, Sleep, sleep_until};

/// The most that is read at once.
const READ: usize = 16 * 1024;
/// What a buffer keeps while nothing happens.
pub(crate) const KEPT: usize = 1_024;
/// Answers of so many bytes are written before more are added: short requests may have long ones.
pub(crate) const ENOUGH: usize = 65_536;

/// How a protocol answers.
pub(crate) trait Speaks: Send {
    /// Answers what is whole in `input`, from its first byte on.
    fn answer(&mut self, input: &[u8], out: &mut Vec<u8>) -> impl Future<Output = Heard> + Send;

    /// Whether an answer may take as long as a rule lets requests wait.
    fn lets_wait(&self) -> bool;

    /// What is said to a client that took too long with a request.
    fn too_slow(&mut self, out: &mut Vec<u8>);
}

/// What came of some input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Heard {
    /// Bytes of it that are done with.
    pub(crate) used: usize,
    pub(crate) then: Then,
}

/// What is next on a connection, once the answers are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Then {
    /// More has to be read.
    Read,
    /// There is more to answer in what was read.
    Answer,
    /// Nothing.
    Close,
}

/// How long a client may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    /// Between two requests.
    pub(crate) idle: Duration,
    /// From the first byte of a request to its last, and to read an answer.
    pub(crate) request: Duration,
}

/// Serves a connection until one of both sides ends it.
pub(crate) async fn serve<S, P>(
    mut stream: S,
    mut protocol: P,
    patience: Patience,
) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin,
    P: Speaks,
{
    let mut timer = pin!(Timer::new(patience.idle));
    let (mut input, mut out) = (Vec::new(), Vec::new());
    // How much of the input is done with.
    let mut done = 0;
    // What was read before it was its turn.
    let mut ahead = Vec::new();
    loop {
        let lets_wait = protocol.lets_wait();
        let answer = protocol.answer(&input[done..], &mut out);
        let heard = if lets_wait {
            while_there(&mut stream, &mut ahead, pin!(answer)).await?
        } else {
            answer.await
        };
        done += heard.used;
        if !out.is_empty() {
            timer.as_mut().set(patience.request);
            in_time(timer.as_mut(), pin!(stream.write_all(&out))).await?;
            out.clear();
        }
        match heard.then {
            Then::Read => {}
            Then::Answer => continue,
            Then::Close => return stream.shutdown().await,
        }
        input.drain(..done);
        done = 0;
        if !ahead.is_empty() {
            input.append(&mut ahead);
            timer.as_mut().set(patience.request);
            continue;
        }
        if input.is_empty() {
            input.shrink_to(KEPT);
            out.shrink_to(KEPT);
            timer.as_mut().set(patience.idle);
        } else if heard.used > 0 {
            timer.as_mut().set(patience.request);
        }
        let was_idle = input.is_empty();
        let read = in_time(timer.as_mut(), pin!(read(&mut stream, &mut input))).await;
        match read {
            Ok(0) => return Ok(()),
            Ok(_) if was_idle => timer.as_mut().set(patience.request),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::TimedOut && !was_idle => {
                protocol.too_slow(&mut out);
                // Whoever is slow may not read, either.
                timer.as_mut().set(patience.request);
                return in_time(timer.as_mut(), pin!(stream.write_all(&out))).await;
            }
            Err(error) => return Err(error),
        }
    }
}

/// Waits for an answer, as long as its client does: one that has closed its side is gone, and leaves the line.
async fn while_there<S: AsyncRead + Unpin, T>(
    stream: &mut S,
    ahead: &mut Vec<u8>,
    mut answer: Pin<&mut impl Future<Output = T>>,
) -> io::Result<T> {
    poll_fn(|cx| {
        if let Poll::Ready(answer) = answer.as_mut().poll(cx) {
            return Poll::Ready(Ok(answer));
        }
        // One that sends more than that meanwhile is still there.
        while ahead.len() < READ {
            match pin!(read(stream, ahead)).poll(cx) {
                Poll::Pending => break,
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into())),
                Poll::Ready(Ok(_)) => {}
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
            }
        }
        Poll::Pending
    })
    .await
}

/// Reads what is there, once something is.
async fn read(stream: &mut (impl AsyncRead + Unpin), input: &mut Vec<u8>) -> io::Result<usize> {
    poll_fn(|cx| {
        let mut bytes = [MaybeUninit::uninit(); READ];
        let mut bytes = ReadBuf::uninit(&mut bytes);
        let Poll::Ready(read) = Pin::new(&mut *stream).poll_read(cx, &mut bytes) else {
            return Poll::Pending;
        };
        input.extend_from_slice(bytes.filled());
        Poll::Ready(read.map(|()| bytes.filled().len()))
    })
    .await
}

/// Does something before the time that is set is over.
async fn in_time<T>(
    mut timer: Pin<&mut Timer>,
    mut doing: Pin<&mut impl Future<Output = io::Result<T>>>,
) -> io::Result<T> {
    poll_fn(|cx| match doing.as_mut().poll(cx) {
        Poll::Ready(done) => Poll::Ready(done),
        Poll::Pending => timer
            .as_mut()
            .poll_over(cx)
            .map(|()| Err(io::ErrorKind::TimedOut.into())),
    })
    .await
}

pin_project_lite::pin_project! {
    /// An alarm that is set for each request. The clock is read once something has to be waited for, and the timer is
    /// moved only when it goes off too early: most alarms are set anew long before.
    struct Timer {
        #[pin]
        sleep: Sleep,
        alarm: Alarm,
    }
}

/// When time is over.
#[derive(Clone, Copy)]
enum Alarm {
    /// So long after it is waited for.
    In(Duration),
    At(Instant),
}

impl Timer {
    fn new(time: Duration) -> Self {
        Self {
            sleep: sleep_until(Instant::now() + time),
            alarm: Alarm::In(time),
        }
    }

    /// Sets it anew, from when it is waited for.
    fn set(self: Pin<&mut Self>, time: Duration) {
        *self.project().alarm = Alarm::In(time);
    }

    fn poll_over(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut this = self.project();
        let until = match *this.alarm {
            Alarm::At(until) => until,
            Alarm::In(time) => Instant::now() + time,
        };
        *this.alarm = Alarm::At(until);
        // It would go off too late.
        if this.sleep.deadline() > until {
            this.sleep.as_mut().reset(until);
        }
        while this.sleep.as_mut().poll(cx).is_ready() {
            if Instant::now() >= until {
                return Poll::Ready(());
            }
            this.sleep.as_mut().reset(until);
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, duplex};

    use super::*;

    const PATIENCE: Patience = Patience {
        idle: Duration::from_secs(600),
        request: Duration::from_secs(10),
    };

    /// Answers each byte with many, but for the last, which begins a request.
    struct Many;

    impl Speaks for Many {
        async fn answer(&mut self, input: &[u8], out: &mut Vec<u8>) -> Heard {
            let used = input.len().saturating_sub(1);
            out.extend(vec![b'!'; used * 100]);
            Heard {
                used,
                then: Then::Read,
            }
        }

        fn lets_wait(&self) -> bool {
            false
        }

        fn too_slow(&mut self, out: &mut Vec<u8>) {
            out.extend([b'?'; 100]);
        }
    }

    /// How many seconds a client is served that says so much, reads so much, and stays; and what it reads.
    async fn served(said: &[u8], reads: usize) -> (u64, Vec<u8>) {
        // Room for less than one answer.
        let (mut client, service) = duplex(16);
        let begun = Instant::now();
        let serving = tokio::spawn(serve(service, Many, PATIENCE));
        client.write_all(said).await.expect("written");
        let mut heard = vec![0; reads];
        client.read_exact(&mut heard).await.expect("read");
        // Nobody is told that there is nobody to tell.
        let _ = serving.await.expect("an end");
        (begun.elapsed().as_secs(), heard)
    }

    #[tokio::test(start_paused = true)]
    async fn who_is_slow_is_let_go_whether_it_reads_or_not() {
        assert_eq!(served(b"", 0).await, (600, Vec::new()));
        // An answer that isn't read.
        assert_eq!(served(b"ab", 0).await.0, 10);
        assert_eq!(served(b"ab", 50).await.0, 10);
        // A request that doesn't end, and what is said of it, which is read or not.
        assert_eq!(served(b"a", 100).await, (10, vec![b'?'; 100]));
        assert_eq!(served(b"a", 0).await.0, 20);
        let (seconds, heard) = served(b"ab", 200).await;
        assert_eq!((seconds, &heard[99..101]), (10, &b"!?"[..]));
    }
}
