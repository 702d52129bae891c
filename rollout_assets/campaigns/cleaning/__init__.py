"""What of a campaign's folder nobody needs any more, why, and how it is removed while others work on."""
