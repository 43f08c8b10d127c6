//! Reads any bytes as an RLS request, for the fuzz target and for the tests that read the target's seeds.

use super::request_message::RequestMessage;

/// Reads a message, and says whether it is one. What is read as it is lies in the message, in its order: each byte is used once.
pub(crate) fn read(message: &[u8]) -> bool {
    let Ok(request) = RequestMessage::read(message) else {
        return false;
    };
    let entries = request.entries();
    let descriptors = request.descriptors(&entries);
    let texts = descriptors.iter().flat_map(|one| one.entries);
    let mut from = message.as_ptr_range().start;
    for text in texts.flat_map(|(key, value)| {
        let mut both = [key, value];
        both.sort_by_key(|text| text.as_ptr());
        both
    }) {
        // What isn't UTF-8 is written anew.
        let is_anew = |sign: char| ('\u{f780}'..='\u{f7ff}').contains(&sign);
        if text.is_empty() || text.contains(is_anew) {
            continue;
        }
        let place = text.as_bytes().as_ptr_range();
        assert!(place.start >= from && place.end <= message.as_ptr_range().end);
        from = place.end;
    }
    true
}
